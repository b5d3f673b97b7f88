"""The images that the Dockerfile makes, built for real: what is in them, and what they may do without."""

from __future__ import annotations

from functools import cache

import pytest
from decodepool_cluster import images

from tests.images import saved

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CUDA = ("worker-cuda",)
EVERY = [*images.TARGETS, *CUDA]
MEGABYTE = 1_000_000
MOST_MEGABYTES = {"worker-cpu": 400, "operator": 220, "gateway": 220, "worker-cuda": 600}


@cache
def image(target: str) -> saved.SavedImage:
    group = images.TARGETS if target in images.TARGETS else CUDA
    with images.archive(*group) as archive:
        return saved.read(archive, images.name(target))


@pytest.mark.parametrize("target", EVERY)
def test_an_image_stays_small(target: str) -> None:
    assert image(target).size_bytes < MOST_MEGABYTES[target] * MEGABYTE


@pytest.mark.parametrize("target", EVERY)
def test_an_image_runs_as_no_user_of_the_machine_and_imports_nothing_from_where_it_starts(target: str) -> None:
    config = image(target).config
    assert config["User"] == "65532:65532"
    assert "PYTHONSAFEPATH=1" in config["Env"]


@pytest.mark.parametrize(
    ("target", "entrypoint"),
    [
        ("worker-cpu", ["decodepool"]),
        ("worker-cuda", ["decodepool"]),
        ("operator", ["python", "-m", "decodepool_operator"]),
        ("gateway", ["python", "-m", "decodepool_gateway"]),
    ],
)
def test_an_images_process_gets_its_signals_itself(target: str, entrypoint: list[str]) -> None:
    config = image(target).config
    assert config["Entrypoint"] == entrypoint, "a shell in front would keep SIGTERM to itself"
    assert not config.get("Cmd")


@pytest.mark.parametrize("target", EVERY)
def test_all_that_is_ours_lies_in_one_folder_and_the_builders_certificates_stay_out(target: str) -> None:
    ours = image(target).paths(above_base=True)
    assert {path.split("/")[0] for path in ours} == {"opt"}
    assert {path.split("/")[1] for path in ours if "/" in path} == {"venv", "decodepool"}


@pytest.mark.parametrize("target", EVERY)
def test_every_module_comes_compiled_since_the_root_may_be_read_only(target: str) -> None:
    paths = image(target).paths(above_base=True)
    sources = {path for path in paths if path.endswith(".py") and "/decodepool_" in path}
    assert sources
    assert {path for path in sources if _compiled(path) not in paths} == set()


def _compiled(source: str) -> str:
    folder, _, name = source.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-311.pyc"


def test_only_workers_carry_the_kernels_compiler() -> None:
    assert {target: any("/llvmlite/" in path for path in image(target).paths()) for target in EVERY} == {
        "worker-cpu": True,
        "worker-cuda": True,
        "operator": False,
        "gateway": False,
    }


def test_an_unchanged_source_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "input_digest", images.input_digest().lower)
    with images.archive(*images.TARGETS) as first:
        monkeypatch.setattr(images, "run", None)
        with images.archive(*images.TARGETS) as second:
            assert second == first
