"""How the model's file comes into a pod, for each kind of source: volumes, mounts, an init container, and its path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from decodepool_sizing.errors import one_line
from decodepool_sizing.model_source import HTTPSource

from decodepool_operator.names import WORKER
from decodepool_operator.planner.objects.common import MODELS_FOLDER, TMP_MOUNT, container, made
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Images, Object

CACHE = "models"
"""The ending of the claim's name that keeps fetched files."""

SHARED = "ReadWriteMany"
TOKEN_FOLDER = "/source"  # noqa: S105 - where a token is mounted


@dataclass(frozen=True)
class ModelFiles:
    """A model inside a pod. `path` is where containers with `mounts` find the file; `init` fetches it first; `on_node`
    says that it does so to the node's own disk.
    """

    path: str
    volumes: tuple[Object, ...]
    mounts: tuple[Object, ...]
    init: tuple[Object, ...] = ()
    on_node: bool = False


def model_files(pool: Pool, images: Images, worker_image: str) -> ModelFiles:
    """Return how the pool's model comes into a pod."""
    source = pool.spec.model.source
    if source.http is not None:
        return _fetched(pool, source.http, images, worker_image)
    mounts = ({"name": "models", "mountPath": MODELS_FOLDER, "readOnly": True},)
    if source.host_path is not None:
        file = PurePosixPath(source.host_path.path)
        volume: Object = {"name": "models", "hostPath": {"path": str(file.parent)}}
        return ModelFiles(f"{MODELS_FOLDER}/{file.name}", (volume,), mounts)
    if source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        volume = {"name": "models", "persistentVolumeClaim": claim}
        return ModelFiles(f"{MODELS_FOLDER}/{source.pvc.path}", (volume,), mounts)
    assert source.image is not None  # the manifest has exactly one source
    volume = {"name": "models", "image": {"reference": source.image.reference}}
    if images.pull_policy:
        volume["image"]["pullPolicy"] = images.pull_policy
    return ModelFiles(f"{MODELS_FOLDER}/{source.image.path.lstrip('/')}", (volume,), mounts)


def model_name(pool: Pool) -> str:
    """Return the file's name without its ending: what people call the model."""
    source = pool.spec.model.source
    path = (
        unquote(urlsplit(source.http.url).path)
        if source.http
        else (source.host_path or source.pvc or source.image).path  # type: ignore[union-attr] # one of the four is there
    )
    return one_line(PurePosixPath(path).name.removesuffix(".gguf")).strip()[:128] or "model"


def cache_claim(pool: Pool) -> Object | None:
    """Return the claim that keeps fetched files; None where each worker fetches its own.

    Workers on several nodes can only share a volume that several nodes may mount, which few storage classes have: it is
    asked for where the spec says that there will be several.
    """
    cache, source = pool.spec.model.cache, pool.spec.model.source
    if cache is None or source.http is None:
        return None
    scaling = pool.spec.autoscaling
    most = scaling.max_replicas if scaling else pool.spec.replicas
    spec: Object = {
        "accessModes": [cache.access_mode or (SHARED if most > 1 else "ReadWriteOnce")],
        "resources": {"requests": {"storage": str(cache.size)}},
    }
    if cache.storage_class_name:
        spec["storageClassName"] = cache.storage_class_name
    return made(pool, "v1", "PersistentVolumeClaim", pool.child(CACHE), WORKER, spec=spec)


def mounts_claim(deployment: Object, claim_name: str) -> bool:
    """Say whether a Deployment's pods mount a claim."""
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return any((each.get("persistentVolumeClaim") or {}).get("claimName") == claim_name for each in volumes)


def _fetched(pool: Pool, source: HTTPSource, images: Images, worker_image: str) -> ModelFiles:
    claim = {"persistentVolumeClaim": {"claimName": pool.child(CACHE)}} if pool.spec.model.cache else {"emptyDir": {}}
    volumes: list[Object] = [{"name": "models", **claim}]
    path = f"{MODELS_FOLDER}/{(source.sha256 or pool.source)[:16]}.gguf"
    mounts: list[Object] = [{"name": "models", "mountPath": MODELS_FOLDER}, dict(TMP_MOUNT)]
    args = ["fetch", source.url, f"--output={path}"]
    if pool.spec.model.cache:
        args.append("--make-room")
    if source.sha256:
        args.append(f"--sha256={source.sha256}")
    if source.secret_ref is not None:
        items = [{"key": source.secret_ref.key, "path": "token"}]
        volumes.append({"name": "source", "secret": {"secretName": source.secret_ref.name, "items": items}})
        mounts.append({"name": "source", "mountPath": TOKEN_FOLDER, "readOnly": True})
        args.append(f"--bearer-file={TOKEN_FOLDER}/token")
    fetch = container("fetch", worker_image, images, args, volumeMounts=mounts, resources=FETCH_RESOURCES)
    served = ({"name": "models", "mountPath": MODELS_FOLDER, "readOnly": True},)
    return ModelFiles(path, tuple(volumes), served, (fetch,), on_node=pool.spec.model.cache is None)


FETCH_RESOURCES: Object = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}
"""A download is written as it comes; the page cache it fills is the kernel's to take back."""
