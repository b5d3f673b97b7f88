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


FROM_IMAGE = {"hub.example/models:1": "hub.example/models:1", "hub.example/models": "hub.example/models:latest"}
"""What a manifest says, and what the kubelet then calls it: `IT` below."""
PULL = 'failed to resolve image "IT": IT: not found'
BACK_OFF = f'Back-off pulling image "IT": ErrImagePull: {PULL}'
NEVER = 'Container image "IT" is not present with pull policy of Never'
NO_NAME = 'Failed to apply default image tag "IT": invalid'
IMAGE_FAULTS = {
    "no image volumes": ("CreateContainerError", NO_SOURCE, "ImageVolumesUnsupported", "does not mount images"),
    "pull": ("ErrImagePull", PULL, "ImagePullBackOff", "image IT cannot be pulled: not found"),
    "back-off": ("ImagePullBackOff", BACK_OFF, "ImagePullBackOff", "image IT cannot be pulled: not found"),
    "never": ("ErrImageNeverPull", NEVER, "ErrImageNeverPull", "image IT cannot be pulled"),
    "name": ("InvalidImageName", NO_NAME, "InvalidImageName", "image IT cannot be pulled"),
}


@pytest.mark.parametrize("reference", FROM_IMAGE)
@pytest.mark.parametrize("fault", IMAGE_FAULTS)
def test_an_image_that_cannot_be_had_is_no_reading_that_goes_on(fault: str, reference: str) -> None:
    raw = pool(model={"source": {"image": {"reference": reference, "path": "/m.gguf"}}})
    waits, message, reason, words = IMAGE_FAULTS[fault]
    told = waiting(raw, waits, message.replace("IT", FROM_IMAGE[reference]))
    assert isinstance(told, Unresolved)
    assert told.reason == reason
    assert words.replace("IT", FROM_IMAGE[reference]) in told.message
    assert told.message.startswith(f"image {reference}, /m.gguf: ")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("CreateContainerError", "something else"),
        ("ImagePullBackOff", 'Back-off pulling image "operator:1": ErrImagePull: not found'),
        ("ImagePullBackOff", 'Back-off pulling image "hub.example/models:12": ErrImagePull: not found'),
    ],
    ids=["another fault", "the reader's own image", "an image of a like name"],
)
def test_another_trouble_of_the_reader_says_nothing_of_the_model(reason: str, message: str) -> None:
    raw = pool(model={"source": {"image": {"reference": "hub.example/models:1", "path": "/m.gguf"}}})
    told = waiting(raw, reason, message)
    assert isinstance(told, Resolving)
    assert reason in told.message


def test_a_containers_number_is_no_news() -> None:
    raw = pool(model={"source": {"hostPath": {"path": "/m.gguf"}}})
    told = waiting(raw, "CreateContainerError", NO_SOURCE)
    assert isinstance(told, Resolving)
    assert "9c23ef" not in told.message
