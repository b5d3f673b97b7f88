from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from decodepool_cluster.cluster import MODELS, Cluster

from tests.cluster.pool.pools import Pool
from tests.cluster.shell.plane import Plane
from tests.tiny.models import Tiny, write

Pools = Callable[[str], Pool]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small models of random weights, tiny-1.gguf and tiny-2.gguf, that draw different tokens."""
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / f"tiny-{seed}.gguf" for seed in (1, 2)]
    for seed, path in enumerate(paths, 1):
        write(Tiny(seed=seed, head_length=32), path)
    return paths


@pytest.fixture(scope="session")
def node_models(cluster: Cluster, tiny_models: list[Path]) -> Path:
    """The folder of models on the node, as this machine sees it, with the small models in it."""
    folder = cluster.node_storage("node-1") / MODELS
    for path in tiny_models:
        shutil.copyfile(path, folder / path.name)
    return folder


@pytest.fixture(scope="module")
def pools(cluster: Cluster, node_models: Path) -> Iterator[Pools]:
    """Names pools of a namespace of the module's own, which goes, with whatever is in it, when the module is over."""
    assert node_models.is_dir()
    namespace = f"pools-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", namespace)
    plane = Plane(cluster)
    yield lambda name: Pool(plane, namespace, name)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
