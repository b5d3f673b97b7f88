"""The DecodePool, `decodepool.dev/v1alpha1`: served on one machine by `decodepool run`, on a cluster by an operator.

These models are the one place where the fields are told: names, bounds and descriptions go from here into every
schema. Numbers are strict (`"4"` and `4.0` are no integers), unknown fields are errors, and every fault is one line
that begins with the field's path.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from decodepool_sizing import limits
from decodepool_sizing.errors import BadManifest
from decodepool_sizing.kv import KVType
from decodepool_sizing.manifest_faults import fault_lines
from decodepool_sizing.model_source import Model, ModelSource, SecretRef
from decodepool_sizing.pod_template import Gateway, PodTemplate
from decodepool_sizing.spec_fields import LABEL_PATTERN, POOL_NAME_PATTERN, Part, Quantity, matches, rule, rules
from decodepool_sizing.workspace import MAX_SESSIONS
from decodepool_sizing.yaml_text import load_mapping

__all__ = ["BadManifest", "DecodePool", "DecodePoolSpec", "ModelSource", "load_manifest", "parse_manifest"]

API_VERSION = "decodepool.dev/v1alpha1"
MAX_NAME = 40
"""Letters of a pool's name: what Kubernetes allows, less what is added to it for the objects a pool owns."""
MAX_REPLICAS = 1000
RESOURCE_PATTERN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[-._A-Za-z0-9]+$"


class Autoscaling(Part):
    """Workers by the share of sessions in use."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.minReplicas <= self.maxReplicas", "minReplicas must not be more than maxReplicas")
        )
    )

    min_replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Fewest workers.")
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="Most workers.")
    target_utilization_percent: int = Field(default=70, ge=1, le=100, description="Share of sessions in use to aim at.")
    scale_down_delay_seconds: int = Field(default=300, ge=0, le=86_400, description="How long less use must last.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is more than maxReplicas {self.max_replicas}")
        return self


class Accelerator(Part):
    """What each worker runs on. For `nvidia`, memory comes from here, else from `product`, else from the node."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.type != 'cpu' || (!has(self.resource) && !has(self.product) && self.count == 1)",
                "type cpu takes no resource, no product and no count but 1",
            )
        )
    )

    type: Literal["nvidia", "cpu"] = Field(default="nvidia", description="Kind of device.")
    resource: str | None = Field(
        default=None,
        pattern=RESOURCE_PATTERN,
        max_length=253,
        description="Resource to ask Kubernetes for: nvidia.com/gpu where absent, or a MIG slice's own.",
        json_schema_extra=rules(matches(RESOURCE_PATTERN, "must be a resource, such as nvidia.com/mig-1g.10gb")),
    )
    count: int = Field(default=1, ge=1, le=16, description="Devices of one worker.")
    memory: Quantity | None = Field(default=None, description="Memory of one device; for cpu, of the worker.")
    product: str | None = Field(
        default=None, min_length=1, max_length=63, description="GPU by name, as node labels have it."
    )

    @model_validator(mode="after")
    def _nothing_of_a_gpu_on_a_cpu(self) -> Self:
        if self.type == "cpu" and (self.resource or self.product or self.count != 1):
            raise ValueError("type cpu takes no resource, no product and no count but 1")
        return self


class Drain(Part):
    """How a worker is emptied before it goes."""

    timeout_seconds: int = Field(default=300, ge=0, le=86_400, description="How long running decodes may take to end.")


class Auth(Part):
    """Who may use the pool."""

    secret_ref: SecretRef = Field(description="API keys, one a line.")


class DecodePoolSpec(Part):
    """What a pool is to be."""

    model: Model = Field(description="The model that every worker serves.")
    context_tokens: int = Field(ge=1, le=limits.CONTEXT_TOKENS, description="Tokens that each session may hold.")
    kv_type: Annotated[KVType, Field(strict=False)] = Field(
        default=KVType.F16, description="How keys and values are kept."
    )
    sessions_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SESSIONS,
        description="Sessions of one worker. Where absent, as many as fit; 8 on a CPU without memory or cacheReserve.",
    )
    replicas: int = Field(default=1, ge=0, le=MAX_REPLICAS, description="Workers.")
    autoscaling: Autoscaling | None = Field(default=None, description="Let use decide how many workers there are.")
    accelerator: Accelerator = Field(
        default_factory=Accelerator, description="What each worker runs on.", json_schema_extra={"default": {}}
    )
    cache_reserve: Quantity | None = Field(
        default=None, description="Memory that caches must leave to sessions; wins over the computed reserve."
    )
    drain: Drain = Field(
        default_factory=Drain, description="How workers are emptied.", json_schema_extra={"default": {}}
    )
    suspend: bool = Field(default=False, description="Keep the pool, run no workers.")
    auth: Auth | None = Field(default=None, description="API keys; anybody may use the pool where absent.")
    gateway: Gateway = Field(default_factory=Gateway, description="The gateways before the workers.")
    template: PodTemplate | None = Field(
        default=None, description="What workers' pods have beside what the pool needs."
    )


class Metadata(BaseModel):
    """The parts of an object's metadata that this project reads; what a cluster adds is left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str = Field(pattern=POOL_NAME_PATTERN, max_length=MAX_NAME, description="Name of the pool.")
    namespace: str = Field(
        default="default", pattern=LABEL_PATTERN, max_length=63, description="Namespace of the pool."
    )
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class DecodePool(Part):
    """A set of workers that hold resident sessions of one model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.metadata.name.size() <= {MAX_NAME}",
                f"metadata.name: at most {MAX_NAME} letters, since the names of a pool's objects add to it",
            ),
            rule(
                f"self.metadata.name.matches(r'{POOL_NAME_PATTERN}')",
                "metadata.name: a letter, then lower case letters, digits and '-', since it names a Service too",
            ),
        )
    )

    api_version: Literal["decodepool.dev/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["DecodePool"] = Field(description="Kind of this object.")
    metadata: Metadata
    spec: DecodePoolSpec
    status: dict[str, Any] | None = Field(
        default=None, description="Written by the operator; never read from a manifest."
    )


def load_manifest(text: str) -> DecodePool:
    """Read a DecodePool from YAML (or JSON). BadManifest holds a line for each fault, with the field's path."""
    try:
        document = load_mapping(text)
    except ValueError as error:
        raise BadManifest([str(error)]) from None
    return parse_manifest(document)


def parse_manifest(document: dict[str, Any]) -> DecodePool:
    """Read a DecodePool from an object as Kubernetes hands it over. BadManifest as `load_manifest`."""
    kind = document.get("kind")
    if isinstance(kind, str) and kind != "DecodePool":
        raise BadManifest([f"kind: this is a {kind[:40]}, expected a DecodePool"])
    try:
        return DecodePool.model_validate(document)
    except ValidationError as error:
        raise BadManifest(fault_lines(error, DecodePool)) from None
