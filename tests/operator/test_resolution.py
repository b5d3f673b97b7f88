from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.planner.differences import stamped
from decodepool_operator.planner.objects.reader_job import reader_job
from decodepool_operator.planner.pools import read_pool
from decodepool_operator.planner.resolution import SOURCE, by_job, source_key
from decodepool_operator.planner.state import Object, Resolving, Unresolved

from tests.operator.pools import pool
from tests.operator.simulation import IMAGES, START

NO_SOURCE = (
    'failed to generate container "9c23ef8d404d4457372d34c85e09e3c03135f7047ad0182fe4378e177bede93a" spec: '
    'failed to generate spec: failed to mkdir "": mkdir : no such file or directory'
)
"""What containerd 1.6 says of a volume that is an image."""


def waiting(raw: Object, reason: str, message: str) -> Any:
    """What is known while the reader's container waits."""
    job = stamped(reader_job(read_pool(raw), IMAGES))
    state = {"name": "reader", "state": {"waiting": {"reason": reason, "message": message}}}
    metadata = {"name": "chat-reader-abcde", "annotations": {SOURCE: source_key(raw)}}
    pod = {"metadata": metadata, "status": {"phase": "Pending", "containerStatuses": [state]}}
    return by_job(raw, job, job, (pod,), START).resolution


@pytest.mark.parametrize(
    ("reason", "message", "known"),
    [
        ("CreateContainerError", NO_SOURCE, Unresolved),
        ("CreateContainerError", "something else", Resolving),
        ("ImagePullBackOff", "no such image", Resolving),
    ],
    ids=["no image volumes", "another fault", "no image"],
)
def test_a_runtime_without_image_volumes_is_told_of(reason: str, message: str, known: type) -> None:
    raw = pool(model={"source": {"image": {"reference": "hub.example/models:1", "path": "/m.gguf"}}})
    told = waiting(raw, reason, message)
    assert isinstance(told, known)
    if isinstance(told, Unresolved):
        assert (told.reason, "runtime does not mount images" in told.message) == ("ImageVolumesUnsupported", True)


def test_a_containers_number_is_no_news() -> None:
    raw = pool(model={"source": {"hostPath": {"path": "/m.gguf"}}})
    told = waiting(raw, "CreateContainerError", NO_SOURCE)
    assert isinstance(told, Resolving)
    assert "9c23ef" not in told.message
