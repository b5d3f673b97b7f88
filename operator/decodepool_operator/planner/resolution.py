"""Which file a pool's model is, and what is known of it: from the status, the shell, or a reader Job's pod."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from decodepool_sizing.errors import told_url
from decodepool_sizing.facts import FactsError, ModelFacts

from decodepool_operator import times
from decodepool_operator.planner.differences import same_stamp
from decodepool_operator.planner.state import Object, Resolution, Resolved, Resolving, Unresolved
from decodepool_operator.planner.troubles import PULL_REASONS, Look, condition_of, pod_trouble
from decodepool_operator.texts import steady

SOURCE = "decodepool.dev/source"
"""Annotation of the reader Job and its pod: the key of the source they read."""

SOURCE_KEY_CHARACTERS = 16
SHORTEST_RETRY = timedelta(seconds=10)
LONGEST_RETRY = timedelta(seconds=300)
SLOW_POD = timedelta(seconds=60)


def source_key(pool: Object) -> str:
    """Return a name for the pool's present source: it changes when another file might be meant."""
    source = pool["spec"]["model"]["source"]
    text = json.dumps(source, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:SOURCE_KEY_CHARACTERS]


def known_facts(pool: Object) -> ModelFacts | None:
    """Return what the status remembers of the pool's present source; None where it has to be read."""
    model = (pool.get("status") or {}).get("model") or {}
    if model.get("source") != source_key(pool) or not isinstance(model.get("facts"), str):
        return None
    try:
        return ModelFacts.from_json(model["facts"])
    except FactsError:
        return None


def source_text(pool: Object) -> str:
    """Return what the pool's source is, for people. A URL is told without what may be secret in it."""
    source = pool["spec"]["model"]["source"]
    kind, told = next((kind, told) for kind, told in source.items() if told is not None)
    if kind == "http":
        return told_url(told["url"])
    where = {"pvc": told.get("claimName"), "image": told.get("reference")}.get(kind)
    return f"{kind} {where}, {told['path']}" if where else str(told["path"])


@dataclass(frozen=True)
class Reading:
    """How reading by a Job stands. `wants_job`: one is to be made; `discards`: what is there is over; `due`: when to
    look again.
    """

    resolution: Resolution
    wants_job: bool = False
    discards: bool = False
    due: datetime | None = None


def by_job(pool: Object, wanted: Object, job: Object | None, pods: tuple[Object, ...], now: datetime) -> Reading:
    """Return what the reader Job has found of a pool's model. `wanted` is the Job as it would be made now.

    What failed is read again after a while, since a file may come: the wait is as long as it has failed already. Until
    then, and while it is read again, the answer stays what it was.
    """
    key = source_key(pool)
    before = _failed_before(pool, key)
    if job is None:
        return Reading(before or Resolving("a reader Job is made"), wants_job=True)
    if (job["metadata"].get("annotations") or {}).get(SOURCE) != key:
        return Reading(before or Resolving("the reader Job of another source is removed"), discards=True)
    mine = [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(SOURCE) == key]
    found = next(_answers(mine, pool, key), None)
    if isinstance(found, Resolved):
        return Reading(found)
    failed = located(pool, found or _without_words(job, mine, key))
    if failed is None and not same_stamp(wanted, job):
        return Reading(before or Resolving("a reader Job with the present template is made"), discards=True)
    if failed is None:
        told = _image_fault(pool, mine, key, now) or before or _waiting(mine, job, pool, now)
        return Reading(told, due=None if mine else _late(job, now))
    due = _retry_time(pool, job, now)
    return Reading(failed, discards=now >= due, due=due)


NO_MOUNT_SOURCE = 'mkdir ""'
"""What a runtime that knows no image volumes says: it finds the mount's source empty."""

NO_IMAGE_VOLUMES = (
    "the node's container runtime does not mount images as volumes, as containerd does since 2.1: "
    "have the file on a claim or behind a URL, or a newer runtime"
)


def _image_fault(pool: Object, pods: list[Object], key: str, now: datetime) -> Unresolved | None:
    """Return what is to be said where the image that has the model cannot be pulled or mounted: the kubelet goes on
    trying, and a reader's own image is not meant.
    """
    image = pool["spec"]["model"]["source"].get("image")
    if not image:
        return None
    look = Look(pool["metadata"]["name"], now)
    troubles = [trouble for pod in pods if (trouble := pod_trouble(pod, look))]
    meant = tuple(f"image {image['reference']}{tag} " for tag in ("", ":latest"))
    for each in troubles:
        if each.reason in PULL_REASONS and each.message.startswith(meant):
            return located(pool, Unresolved(each.reason, each.message, key))
        if each.reason == "CreateContainerError" and NO_MOUNT_SOURCE in each.message:
            return located(pool, Unresolved("ImageVolumesUnsupported", NO_IMAGE_VOLUMES, key))
    return None


def located(pool: Object, failed: Unresolved | None) -> Unresolved | None:
    """Return a failure that says which file it is about."""
    return failed and replace(failed, message=f"{source_text(pool)}: {failed.message}")


def _answers(pods: list[Object], pool: Object, key: str) -> Iterator[Resolved | Unresolved]:
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses") or ():
            ended = (status.get("state") or {}).get("terminated")
            if ended is not None:
                yield _answer(ended, pool, key)


def _answer(ended: Object, pool: Object, key: str) -> Resolved | Unresolved:
    text = str(ended.get("message") or "").strip()
    if ended.get("exitCode") == 0:
        try:
            return Resolved(ModelFacts.from_json(text), key)
        except FactsError as error:
            return Unresolved("ReaderFailed", f"the reader's answer cannot be read: {error}", key)
    reason, colon, message = text.rpartition("\n")[2].partition(": ")
    if colon and reason.isalnum() and reason[:1].isupper():
        return Unresolved(reason, steady(message, pool["metadata"]["name"]), key)
    said = steady(text.rpartition("\n")[2], pool["metadata"]["name"]) or ended.get("reason") or "no reason given"
    reason = "OOMKilled" if ended.get("reason") == "OOMKilled" else "ReaderFailed"
    return Unresolved(reason, f"the reader ended with {ended.get('exitCode')}: {said}", key)


def _without_words(job: Object, pods: list[Object], key: str) -> Unresolved | None:
    """Return what is to be said of a Job that is over and has left no pod to ask."""
    failed = condition_of(job, "Failed")
    over = failed.get("status") == "True" or condition_of(job, "Complete").get("status") == "True"
    if pods or not over:
        return None
    return Unresolved(
        "ReaderFailed", f"the reader Job ended without an answer: {failed.get('reason') or 'its pod is gone'}", key
    )


def _late(job: Object, now: datetime) -> datetime:
    """Return when a Job should have had its pod."""
    return (times.read(job["metadata"].get("creationTimestamp")) or now) + SLOW_POD


def _waiting(pods: list[Object], job: Object, pool: Object, now: datetime) -> Resolving:
    if not pods and now >= _late(job, now):
        return Resolving("the reader Job has no pod: a quota or a policy may forbid it; the Job's events say which")
    look = Look(pool["metadata"]["name"], now)
    troubles = [trouble for pod in pods if (trouble := pod_trouble(pod, look))]
    if not troubles:
        return Resolving("the file's header is read by a Job")
    return Resolving(f"the reader Job waits: {troubles[0].reason}: {troubles[0].message}")


def _failed_before(pool: Object, key: str) -> Unresolved | None:
    """Return the failure that the status tells of the present source."""
    status = pool.get("status") or {}
    told = condition_of({"status": status}, "ModelResolved")
    if (status.get("model") or {}).get("source") != key or told.get("status") != "False":
        return None
    return Unresolved(str(told.get("reason")), str(told.get("message")), key)


def _retry_time(pool: Object, job: Object, now: datetime) -> datetime:
    """Return when to read again: after as long as it has been failing, within bounds."""
    begun = times.read(job["metadata"].get("creationTimestamp")) or now
    told = condition_of({"status": pool.get("status") or {}}, "ModelResolved")
    since = times.read(told.get("lastTransitionTime")) if told.get("status") == "False" else None
    failing = max(begun - since, timedelta()) if since else timedelta()
    return begun + min(max(failing, SHORTEST_RETRY), LONGEST_RETRY)
