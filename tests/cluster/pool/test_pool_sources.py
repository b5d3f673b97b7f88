"""Where a model comes from: a URL, a volume, an image, a node's disk; and what is said of one that cannot be had."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from decodepool_cluster import archives
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until

from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.file_server import FileServer, serving
from tests.cluster.pool.pools import Object, Pool, host_path

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

PROMPT = [5, 17, 40, 3]
MODEL_IMAGE = "localhost/tiny-model:1"


def http(server: FileServer, **source: object) -> Object:
    return {"source": {"http": {"url": server.url, **source}}}


def greedy(pool: Pool) -> list[int]:
    client = pool.endpoint()
    session = client.post("/v1/sessions", {"tokens": PROMPT}, 201)["id"]
    tokens: list[int] = client.decode(session, max_tokens=24, ignore_eos=True)["tokens"]
    client.call("DELETE", f"/v1/sessions/{session}")
    return tokens


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def server(cluster: Cluster, tiny_models: list[Path]) -> Iterator[FileServer]:
    assert cluster.is_running()
    with serving(FileServer(tiny_models[0].read_bytes())) as one:
        yield one


def test_a_file_behind_a_url_and_a_token_is_fetched_checked_and_served(
    server: FileServer, pools: Pools, cluster: Cluster, tiny_models: list[Path]
) -> None:
    server.token = "open-sesame"
    pool = pools("fetched")
    model = http(server, sha256=digest(tiny_models[0]), secretRef={"name": "hub"})
    pool.make(model)
    assert "hub" in pool.wait_condition("ModelResolved", "SecretNotFound", 30)
    secret = ["create", "secret", "generic", "hub", "-n", pool.namespace]
    cluster.kubectl(*secret, "--from-literal=token=wrong")
    assert "401" in pool.wait_condition("ModelResolved", "Unauthorized", 60)
    cluster.kubectl("delete", "secret", "hub", "-n", pool.namespace)
    cluster.kubectl(*secret, f"--from-literal=token={server.token}")
    pool.wait_ready()
    assert pool.status()["model"]["digest"] == f"sha256:{digest(tiny_models[0])}"
    assert any(asked.startswith("bytes=0-") for asked in server.asked), "the header is read in ranges"
    assert greedy(pool)
    pool.delete()


def test_another_file_than_was_meant_is_not_served(server: FileServer, pools: Pools) -> None:
    pool = pools("other").make(http(server, sha256="0" * 64))
    assert "its sha256 is" in pool.wait_condition("ModelResolved", "HashDiffers", 60)
    assert not pool.is_ready()


def test_a_slow_download_is_no_hang(server: FileServer, pools: Pools) -> None:
    """A16, a slow load is no hang: while it comes nobody is told that there is a worker, and nobody ends it."""
    server.bytes_per_second, server.free_bytes = len(server.data) / 90, 1 << 18
    pool = pools("slow").make(http(server))
    wait_until(lambda: pool.pods("worker") and pool.pods("gateway"), "the pods", 30)
    pool.wait_condition("Ready", "Starting", 30)
    time.sleep(5)
    assert pool.condition("Ready")["reason"] == "Starting"
    server.bytes_per_second = None
    pool.wait_ready()
    statuses = pool.pods()[0]["status"]
    assert {each["restartCount"] for each in (*statuses["initContainerStatuses"], *statuses["containerStatuses"])} == {
        0
    }


def volume(name: str, folder: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": name,
            "hostPath": {"path": folder},
        },
    }


def claim(name: str) -> Object:
    spec = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def test_a_file_on_a_claim_is_read_and_served(pools: Pools, cluster: Cluster) -> None:
    pool = pools("claimed")
    name = f"models-{pool.namespace}"
    cluster.apply(volume(name, "/var/lib/decodepool/models"), claim(name), namespace=pool.namespace)
    try:
        pool.make({"source": {"pvc": {"claimName": name, "path": "tiny-2.gguf"}}}).wait_ready()
        assert pool.status()["model"]["name"] == "tiny-2"
        assert greedy(pool)
    finally:
        pool.delete()
        cluster.kubectl("delete", "pv", name, "--wait=false")


def put_image(cluster: Cluster, name: str, model: Path, folder: Path) -> None:
    """Put an image on the node that has a model in it and nothing else."""
    layer, archive = io.BytesIO(), folder / f"{name.rpartition('/')[2].partition(':')[0]}.tar"
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(model, f"models/{model.name}")
    archives.write_image(archive, name, layer.getvalue(), {})
    cluster.load(archive)


@pytest.fixture(scope="module")
def model_image(cluster: Cluster, tiny_models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image on the node with tiny-1.gguf in its folder models."""
    put_image(cluster, MODEL_IMAGE, tiny_models[0], tmp_path_factory.mktemp("images"))
    return MODEL_IMAGE


def image(reference: str, path: str) -> Object:
    return {"source": {"image": {"reference": reference, "path": path}}}


def test_a_file_in_an_image_is_read_in_place_and_served(model_image: str, pools: Pools) -> None:
    plain = pools("beside").make(host_path("tiny-1.gguf"))
    pool = pools("imaged").make(image(model_image, "/models/tiny-1.gguf")).wait_ready()
    assert pool.status()["model"]["name"] == "tiny-1"
    spec = pool.pods()[0]["spec"]
    assert {"name": "models", "image": {"reference": model_image, "pullPolicy": "IfNotPresent"}} in spec["volumes"]
    assert "initContainers" not in spec, "nothing is copied"
    assert greedy(pool) == greedy(plain.wait_ready())
    pool.delete()
    plain.delete()


def test_a_file_that_an_image_has_not_is_said_to_be_missing_in_it(model_image: str, pools: Pools) -> None:
    pool = pools("imaged-other").make(image(model_image, "/models/other.gguf"))
    told = pool.wait_condition("ModelResolved", "NotFound", 60)
    assert f"image {model_image}, /models/other.gguf" in told
    assert pool.condition("Ready")["reason"] == "NotFound"
    assert not pool.pods()


def test_an_image_that_cannot_be_pulled_is_named_and_may_come(
    pools: Pools, cluster: Cluster, tiny_models: list[Path], tmp_path: Path
) -> None:
    reference = f"localhost/late-model:{uuid.uuid4().hex[:8]}"
    pool = pools("imaged-late").make(image(reference, "/models/tiny-1.gguf"))
    assert f"image {reference} cannot be pulled" in pool.wait_condition("ModelResolved", "ImagePullBackOff", 60)
    assert pool.condition("ModelResolved")["status"] == "False"
    assert pool.condition("Ready")["reason"] == "ImagePullBackOff"
    assert not pool.pods()
    put_image(cluster, reference, tiny_models[0], tmp_path)
    pool.wait_ready()
    pool.delete()


def cut(folder: Path) -> None:
    data = (folder / "tiny-1.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])


def page(folder: Path) -> None:
    (folder / "page.gguf").write_text("<!doctype html><title>Sign in</title>" + " " * 9000)


def directory(folder: Path) -> None:
    (folder / "folder.gguf").mkdir(exist_ok=True)


def locked(folder: Path) -> None:
    shutil.copyfile(folder / "tiny-1.gguf", folder / "locked.gguf")
    (folder / "locked.gguf").chmod(0)


NOT_MODELS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "cut": (cut, "Truncated", "bytes"),
    "page": (page, "NotGGUF", "GGUF"),
    "folder": (directory, "NotAFile", "directory|folder|regular"),
    "locked": (locked, "Unauthorized|PermissionDenied|NotReadable", "ermission"),
    "missing": (lambda _: None, "NotFound", "missing.gguf"),
}


@pytest.fixture(scope="module")
def not_models(pools: Pools, node_models: Path) -> dict[str, Pool]:
    """A pool for each of the files that are none, all made at once."""
    for make, _, _ in NOT_MODELS.values():
        make(node_models)
    return {name: pools(f"no-{name}").make(host_path(f"{name}.gguf")) for name in NOT_MODELS}


@pytest.mark.parametrize("name", NOT_MODELS)
def test_what_is_no_model_is_refused_before_there_is_a_worker(name: str, not_models: dict[str, Pool]) -> None:
    """A37, a file that ends early, and others that are no model."""
    pool, (_, reason, words) = not_models[name], NOT_MODELS[name]
    wait_until(lambda: pool.condition("ModelResolved").get("status") == "False", "the refusal", 60)
    told = pool.condition("ModelResolved")
    assert re.fullmatch(reason, told["reason"]), told
    assert re.search(words, told["message"]), told
    assert f"/var/lib/decodepool/models/{name}.gguf" in told["message"], "it says which file"
    assert pool.condition("Ready")["reason"] == told["reason"]
    assert not pool.pods()


@pytest.mark.parametrize("how", ["replaced", "cut"])
def test_a_served_model_outlives_its_file(how: str, pools: Pools, node_models: Path) -> None:
    """A37, a file that ends early: while it is served."""
    file = node_models / f"{how}-later.gguf"
    shutil.copyfile(node_models / "tiny-1.gguf", file)
    pool = pools(f"{how}-later").make(host_path(file.name)).wait_ready()
    before = greedy(pool)
    if how == "cut":
        os.truncate(file, 1000)
    else:
        shutil.copyfile(node_models / "tiny-2.gguf", file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
    time.sleep(1)
    assert greedy(pool) == before
    assert pool.is_ready()
    assert pool.pods()[0]["status"]["containerStatuses"][0]["restartCount"] == 0
