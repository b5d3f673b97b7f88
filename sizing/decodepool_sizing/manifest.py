"""The DecodePool, `decodepool.dev/v1alpha1`: served on one machine by `decodepool run`, on a cluster by an operator.

These models are the one place where the fields are told: names, bounds and descriptions go from here into every
schema. Numbers are strict (`"4"` and `4.0` are no integers), unknown fields are errors, and every fault is one line
that begins with the field's path.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from decodepool_sizing import limits
from decodepool_sizing.errors import BadManifest
from decodepool_sizing.kv import KVType
from decodepool_sizing.manifest_faults import fault_lines
from decodepool_sizing.pod_template import PodTemplate
from decodepool_sizing.quantities import LARGEST_BYTES, QUANTITY_PATTERN, parse_bytes
from decodepool_sizing.workspace import MAX_STEP_ROWS
from decodepool_sizing.yaml_text import load_mapping

__all__ = ["BadManifest", "DecodePool", "load_manifest"]

API_VERSION = "decodepool.dev/v1alpha1"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
RELATIVE_PATH_PATTERN = r"^[^/\x00-\x1f][^\x00-\x1f]*$"
ABSOLUTE_PATH_PATTERN = r"^/[^\x00-\x1f]+$"
MAX_NAME = 40
"""Letters of a pool's name: what Kubernetes allows, less what is added to it for the objects a pool owns."""
MAX_REPLICAS = 1000


def _quantity(value: object) -> int:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST_BYTES:
        raise ValueError("not an amount of memory such as 80Gi")
    return value


Quantity = Annotated[
    int,
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
        }
    ),
]
"""Bytes, written as an integer or as `80Gi`."""


class Spec(BaseModel):
    """The manners of every part of the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


class SecretRef(Spec):
    """A key of a Secret in the pool's namespace."""

    name: str = Field(pattern=SUBDOMAIN_PATTERN, max_length=253, description="Name of the Secret.")
    key: str = Field(default="token", pattern=r"^[-._a-zA-Z0-9]+$", max_length=253, description="Key in the Secret.")


class HTTPSource(Spec):
    """A model behind a URL whose server answers ranged requests."""

    url: str = Field(pattern=r"^https?://[^\s/]+\S*$", max_length=2048, description="Where the GGUF file is.")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$", description="Digest the file must have.")
    secret_ref: SecretRef | None = Field(default=None, description="Bearer token to send to the URL's own host.")


class PVCSource(Spec):
    """A model on a volume in the pool's namespace."""

    claim_name: str = Field(pattern=SUBDOMAIN_PATTERN, max_length=253, description="Name of the claim.")
    path: str = Field(pattern=RELATIVE_PATH_PATTERN, max_length=1024, description="Path of the file on the volume.")

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        if ".." in path.split("/"):
            raise ValueError("'..' has no place in it")
        return path


class ImageSource(Spec):
    """A model inside a container image."""

    reference: str = Field(pattern=r"^\S+$", max_length=512, description="The image, with a tag or a digest.")
    path: str = Field(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024, description="Path of the file in the image.")


class HostPathSource(Spec):
    """A model on the machine itself."""

    path: str = Field(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024, description="Absolute path of the file.")


class ModelSource(Spec):
    """Where the model comes from: exactly one of the four."""

    http: HTTPSource | None = Field(default=None, description="From a URL.")
    pvc: PVCSource | None = Field(default=None, description="From a volume.")
    image: ImageSource | None = Field(default=None, description="From a container image.")
    host_path: HostPathSource | None = Field(default=None, description="From the machine's own disk.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("http", "pvc", "image", "hostPath") if getattr(self, _FIELDS[name]) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of http, pvc, image, hostPath is needed; given: {', '.join(given) or 'none'}"
            )
        return self


_FIELDS = {"http": "http", "pvc": "pvc", "image": "image", "hostPath": "host_path"}


class ModelCache(Spec):
    """A volume that keeps the fetched file between workers."""

    size: Quantity = Field(description="Size of the volume.")
    storage_class_name: str | None = Field(
        default=None,
        pattern=SUBDOMAIN_PATTERN,
        max_length=253,
        description="Storage class; the cluster's default where absent.",
    )


class Model(Spec):
    """The model of a pool."""

    source: ModelSource = Field(description="Where the GGUF file comes from.")
    cache: ModelCache | None = Field(
        default=None, description="Volume to keep the file on; each worker fetches where absent."
    )


class Autoscaling(Spec):
    """Workers by the share of sessions in use."""

    min_replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Fewest workers.")
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="Most workers.")
    target_utilization_percent: int = Field(default=70, ge=1, le=100, description="Share of sessions in use to aim at.")
    scale_down_delay_seconds: int = Field(default=300, ge=0, le=86_400, description="How long less use must last.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is more than maxReplicas {self.max_replicas}")
        return self


class Accelerator(Spec):
    """What each worker runs on. For `nvidia`, memory comes from here, else from `product`, else from the node."""

    type: Literal["nvidia", "cpu"] = Field(default="nvidia", description="Kind of device.")
    resource: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[-._A-Za-z0-9]+$",
        max_length=253,
        description="Resource to ask Kubernetes for: nvidia.com/gpu where absent, or a MIG slice's own.",
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


class Drain(Spec):
    """How a worker is emptied before it goes."""

    timeout_seconds: int = Field(default=300, ge=0, le=86_400, description="How long running decodes may take to end.")


class Auth(Spec):
    """Who may use the pool."""

    secret_ref: SecretRef = Field(description="API keys, one a line.")


class DecodePoolSpec(Spec):
    """What a pool is to be."""

    model: Model = Field(description="The model that every worker serves.")
    context_tokens: int = Field(ge=1, le=limits.CONTEXT_TOKENS, description="Tokens that each session may hold.")
    kv_type: Annotated[KVType, Field(strict=False)] = Field(
        default=KVType.F16, description="How keys and values are kept."
    )
    sessions_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=MAX_STEP_ROWS,
        description="Sessions of one worker. Where absent, as many as fit; 8 on a CPU without memory or cacheReserve.",
    )
    replicas: int = Field(default=1, ge=0, le=MAX_REPLICAS, description="Workers.")
    autoscaling: Autoscaling | None = Field(default=None, description="Let use decide how many workers there are.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="What each worker runs on.")
    cache_reserve: Quantity | None = Field(
        default=None, description="Memory that caches must leave to sessions; wins over the computed reserve."
    )
    drain: Drain = Field(default_factory=Drain, description="How workers are emptied.")
    suspend: bool = Field(default=False, description="Keep the pool, run no workers.")
    auth: Auth | None = Field(default=None, description="API keys; anybody may use the pool where absent.")
    template: PodTemplate | None = Field(
        default=None, description="What workers' pods have beside what the pool needs."
    )


class Metadata(BaseModel):
    """The parts of an object's metadata that this project reads; what a cluster adds is left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str = Field(pattern=NAME_PATTERN, max_length=MAX_NAME, description="Name of the pool.")
    namespace: str = Field(default="default", pattern=NAME_PATTERN, max_length=63, description="Namespace of the pool.")
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class DecodePool(Spec):
    """A set of workers that hold resident sessions of one model."""

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
