"""The status of a DecodePool, as the operator writes it. Every field may be absent; amounts are bytes.

Texts such as `workers` and `sessions.summary` are there because a printer column shows a field and computes nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from decodepool_sizing.spec_fields import Part

Bytes = Annotated[int | None, Field(default=None, ge=0)]
Count = Annotated[int | None, Field(default=None, ge=0)]
Text = Annotated[str | None, Field(default=None, max_length=512)]
Time = Annotated[str | None, Field(default=None, json_schema_extra={"format": "date-time"})]


class ModelStatus(Part):
    """The model, once its header was read."""

    name: Text = Field(description="The file's name, without its ending.")
    digest: Text = Field(description="sha256 of the file, or of its header where the file is too far away to be read.")
    file_bytes: Bytes = Field(description="Size of the file.")
    architecture: Text = Field(description="general.architecture of the file.")
    quantization: Text = Field(description="The type most of its weights have.")
    layers: Count = Field(description="Layers.")
    max_context_tokens: Count = Field(description="Tokens the model was made for.")
    source: Text = Field(description="Digest of the spec.model.source that these were read from.")
    facts: str | None = Field(
        default=None, max_length=8192, description="What planning needs of the header, kept so that it is read once."
    )


class PlanStatus(Part):
    """What each worker was planned to hold. weight + workspace + reserve + cache is at most usable."""

    device: Text = Field(description="What was planned for, and who said so.")
    placement: Text = Field(description="Digest of what decided which nodes were looked at, where they were.")
    context_tokens: Count = Field(description="Tokens of a session.")
    kv_type: Text = Field(description="Type of keys and values.")
    device_bytes: Bytes = Field(description="Memory of the device.")
    usable_bytes: Bytes = Field(description="What of it a worker may use.")
    weight_bytes: Bytes = Field(description="Weights, as the engine keeps them.")
    workspace_bytes: Bytes = Field(description="Activations of one step.")
    session_bytes: Bytes = Field(description="One session with its whole context.")
    reserve_bytes: Bytes = Field(description="sessionsPerWorker x sessionBytes, never given to a cache.")
    cache_bytes: Bytes = Field(description="What is left for pages of closed sessions.")
    sessions_per_worker: Count = Field(description="Sessions that a worker admits.")
    limited_by: Text = Field(description="What keeps it from one session more.")
    reserve: Text = Field(description="The reserve for people, such as 720.0 MiB.")


class MeasuredStatus(Part):
    """What workers measured after loading: the figures of the one that differs most from its plan."""

    workers: Count = Field(description="Workers that reported.")
    pod: Text = Field(description="Whose figures these are.")
    usable_bytes: Bytes = Field(description="What the worker may use.")
    weight_bytes: Bytes = Field(description="Weights.")
    workspace_bytes: Bytes = Field(description="Activations of one step.")
    session_bytes: Bytes = Field(description="One session.")
    reserve_bytes: Bytes = Field(description="Reserve.")
    cache_bytes: Bytes = Field(description="Cache.")
    sessions_and_cache_bytes: Bytes = Field(description="Reserve and cache, which are one allocation.")
    resident_bytes: Bytes = Field(description="Memory of the whole process.")
    difference_percent: Count = Field(description="Largest difference from the plan, in whole percent, rounded up.")


class SessionsStatus(Part):
    """Sessions of the pool's own workers."""

    capacity: Count = Field(description="How many all workers hold: sessionsPerWorker x replicas.")
    active: Count = Field(description="How many are resident.")
    queued: Count = Field(description="How many wait at the gateway.")
    summary: Text = Field(description="active/capacity.")


class SidecarsStatus(Part):
    """Workers beside applications, in pods that are labelled for this pool. They are not in `sessions`."""

    count: Count = Field(description="Pods with a sidecar of this pool.")
    ready: Count = Field(description="How many of them admit sessions.")
    capacity: Count = Field(description="How many sessions they hold.")
    active: Count = Field(description="How many are resident.")


class DrainingStatus(Part):
    """A worker that is emptied."""

    pod: str = Field(max_length=253, description="Name of the pod.")
    since: Time = Field(description="Since when.")
    sessions: Count = Field(description="Sessions still resident.")


class AutoscalingStatus(Part):
    """What autoscaling would have."""

    wanted_replicas: Count = Field(description="Workers that use asks for.")
    below_since: Time = Field(description="Since when fewer would do; the delay is counted from here.")
    message: Text = Field(description="Why.")


class FailuresStatus(Part):
    """Pods of one component that failed and are replaced, each after a longer wait."""

    count: Count = Field(description="Failures in a row.")
    pod: Text = Field(description="The last pod that failed.")
    reason: Text = Field(description="Why, as Kubernetes says it.")
    last_time: Time = Field(description="When.")
    next_try_time: Time = Field(description="When the next replacement is due.")


class Condition(Part):
    """One thing that is so, or not, or not known."""

    type: str = Field(max_length=316, description="Ready sums the others up.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(min_length=1, max_length=1024, description="One word for programs.")
    message: str = Field(max_length=32_768, description="A sentence for people.")
    last_transition_time: str = Field(
        description="When status last changed.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: Count = Field(description="The generation of the spec that this speaks of.")


class DecodePoolStatus(Part):
    """What a pool is at present."""

    observed_generation: Count = Field(description="The generation of the spec that this speaks of.")
    replicas: Count = Field(description="Worker pods that exist and are not ending.")
    ready_replicas: Count = Field(description="Workers of the present template that admit sessions.")
    updated_replicas: Count = Field(description="Worker pods of the present template.")
    workers: Text = Field(description="ready/wanted.")
    selector: str | None = Field(default=None, max_length=1024, description="Selects the worker pods, for autoscalers.")
    endpoint: Text = Field(description="Where clients connect to.")
    accelerator: Text = Field(description="What workers run on, for people.")
    model: ModelStatus | None = Field(default=None, description="The model.")
    plan: PlanStatus | None = Field(default=None, description="The plan.")
    measured: MeasuredStatus | None = Field(default=None, description="What the plan came to.")
    sessions: SessionsStatus | None = Field(default=None, description="Sessions.")
    sidecars: SidecarsStatus | None = Field(default=None, description="Workers beside applications.")
    draining: list[DrainingStatus] | None = Field(
        default=None, max_length=32, description="Workers that are emptied before they go."
    )
    autoscaling: AutoscalingStatus | None = Field(default=None, description="Autoscaling's memory.")
    failures: FailuresStatus | None = Field(default=None, description="The memory of failed workers.")
    gateway_failures: FailuresStatus | None = Field(default=None, description="The memory of failed gateways.")
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=32,
        description="What is so at present.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
