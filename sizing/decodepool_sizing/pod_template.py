"""What a user may add to the pods of a pool: Kubernetes' own shapes, passed through as they are.

Small shapes are checked at the door, so that a typo in a toleration is refused and not found by the scheduler; large
ones are left to the API server, which checks them when the pods' Deployment is made. Either way a value stays the
mapping that the user wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, GetJsonSchemaHandler, JsonValue, ValidationError, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from decodepool_sizing.manifest_faults import fault_lines
from decodepool_sizing.spec_fields import Part, matches, rules

Block = dict[str, Any]
KEEP: dict[str, JsonValue] = {"x-kubernetes-preserve-unknown-fields": True}


class Toleration(Part):
    """As in a PodSpec."""

    key: str | None = Field(default=None)
    operator: str | None = Field(default=None)
    value: str | None = Field(default=None)
    effect: str | None = Field(default=None)
    toleration_seconds: int | None = Field(default=None)


class EnvironmentVariable(Part):
    """As in a Container."""

    name: str
    value: str | None = Field(default=None)
    value_from: Block | None = Field(default=None, json_schema_extra=KEEP)


class NodeRequirement(Part):
    """As in a NodeSelectorTerm."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] | None = Field(default=None)


class NodeTerm(Part):
    """As in a NodeSelector."""

    match_expressions: list[NodeRequirement] | None = Field(default=None)
    match_fields: list[NodeRequirement] | None = Field(default=None)


class NodeTerms(Part):
    """As in a NodeAffinity."""

    node_selector_terms: list[NodeTerm]


class NodeAffinity(Part):
    """As in an Affinity. What is required decides for which GPUs is planned; what is preferred is passed through."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = Field(default=None)
    preferred_during_scheduling_ignored_during_execution: list[Block] | None = Field(
        default=None, json_schema_extra={"items": {"type": "object", **KEEP}}
    )


class Affinity(Part):
    """As in a PodSpec."""

    node_affinity: NodeAffinity | None = Field(default=None)
    pod_affinity: Block | None = Field(default=None, json_schema_extra=KEEP)
    pod_anti_affinity: Block | None = Field(default=None, json_schema_extra=KEEP)


class PullSecret(Part):
    """As in a PodSpec."""

    name: str


class VolumeMount(Part):
    """As in a Container."""

    name: str
    mount_path: str
    sub_path: str | None = Field(default=None)
    sub_path_expr: str | None = Field(default=None)
    read_only: bool | None = Field(default=None)
    recursive_read_only: str | None = Field(default=None)
    mount_propagation: str | None = Field(default=None)


Amounts = Annotated[
    Block,
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
            },
        }
    ),
]


class Resources(Part):
    """As in a Container."""

    requests: Amounts | None = Field(default=None)
    limits: Amounts | None = Field(default=None)
    claims: list[Block] | None = Field(default=None, json_schema_extra={"items": {"type": "object", **KEEP}})


def _checked_as(shape: type[Part]) -> AfterValidator:
    def check(block: Block) -> Block:
        try:
            shape.model_validate(block)
        except ValidationError as error:
            raise ValueError("; ".join(fault_lines(error, shape))) from None
        return block

    return AfterValidator(check)


@dataclass(frozen=True)
class _SchemaOf:
    """A mapping with the schema of a shape, whose own parts find their place among the definitions."""

    shape: type[Part]

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.shape.__pydantic_core_schema__)


def _keyed_by(field: str) -> dict[str, JsonValue]:
    """A list in which no two items have the same, as the API server holds it to, and merges it by."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


TolerationBlock = Annotated[Block, _checked_as(Toleration), _SchemaOf(Toleration)]
EnvironmentBlock = Annotated[Block, _checked_as(EnvironmentVariable), _SchemaOf(EnvironmentVariable)]
AffinityBlock = Annotated[Block, _checked_as(Affinity), _SchemaOf(Affinity)]
PullSecretBlock = Annotated[Block, _checked_as(PullSecret), _SchemaOf(PullSecret)]
VolumeMountBlock = Annotated[Block, _checked_as(VolumeMount), _SchemaOf(VolumeMount)]
ResourcesBlock = Annotated[Block, _checked_as(Resources), _SchemaOf(Resources)]
OpenBlock = Annotated[Block, WithJsonSchema({"type": "object", **KEEP})]


class PodTemplate(Part):
    """Additions to a worker's pod. What the pool itself decides (command, ports, probes, model volume) is not here."""

    model_config = ConfigDict(title="PodTemplate")

    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the pods.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the pods.")
    image: str | None = Field(
        default=None,
        pattern=r"^\S+$",
        max_length=512,
        description="Worker image in place of the default.",
        json_schema_extra=rules(matches(r"^\S+$", "must be an image, such as registry.example/worker:1.0")),
    )
    image_pull_secrets: list[PullSecretBlock] = Field(
        default_factory=list, description="As in a PodSpec.", json_schema_extra=_keyed_by("name")
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="As in a PodSpec.")
    tolerations: list[TolerationBlock] = Field(default_factory=list, description="As in a PodSpec.")
    affinity: AffinityBlock | None = Field(default=None, description="As in a PodSpec.")
    topology_spread_constraints: list[OpenBlock] = Field(default_factory=list, description="As in a PodSpec.")
    priority_class_name: str | None = Field(default=None, description="As in a PodSpec.")
    runtime_class_name: str | None = Field(default=None, description="As in a PodSpec.")
    service_account_name: str | None = Field(default=None, description="As in a PodSpec.")
    resources: ResourcesBlock | None = Field(
        default=None, description="As in a Container; the accelerator's resource is added."
    )
    env: list[EnvironmentBlock] = Field(
        default_factory=list, description="As in a Container.", json_schema_extra=_keyed_by("name")
    )
    volumes: list[OpenBlock] = Field(default_factory=list, description="As in a PodSpec.")
    volume_mounts: list[VolumeMountBlock] = Field(
        default_factory=list, description="As in a Container.", json_schema_extra=_keyed_by("mountPath")
    )


class Gateway(Part):
    """The gateways before the workers. They run on any node, and need no GPU."""

    replicas: int = Field(
        default=2, ge=1, le=100, description="Gateways: however many workers there are, since streams go through them."
    )
    queue_seconds: int = Field(
        default=10, ge=0, le=3600, description="How long a new session may wait for a place before it is refused."
    )
    resources: ResourcesBlock | None = Field(
        default=None,
        description="As in a Container, over requests of 50m and 96Mi and a limit of 512Mi. Thousands of streams need "
        "more.",
    )
    tolerations: list[TolerationBlock] | None = Field(
        default=None, description="As in a PodSpec; where absent, the template's, save for those of nvidia.com taints."
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="As in a PodSpec.")
    priority_class_name: str | None = Field(default=None, description="As in a PodSpec.")
