"""What a user may add to the pods of a pool: Kubernetes' own shapes, passed through as they are."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Block = dict[str, Any]


class PodTemplate(BaseModel):
    """Additions to a worker's pod. What the pool itself decides (command, ports, probes, model volume) is not here."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)

    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the pods.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the pods.")
    image: str | None = Field(
        default=None, pattern=r"^\S+$", max_length=512, description="Worker image in place of the default."
    )
    image_pull_secrets: list[Block] = Field(default_factory=list, description="As in a PodSpec.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="As in a PodSpec.")
    tolerations: list[Block] = Field(default_factory=list, description="As in a PodSpec.")
    affinity: Block | None = Field(default=None, description="As in a PodSpec.")
    topology_spread_constraints: list[Block] = Field(default_factory=list, description="As in a PodSpec.")
    priority_class_name: str | None = Field(default=None, description="As in a PodSpec.")
    runtime_class_name: str | None = Field(default=None, description="As in a PodSpec.")
    service_account_name: str | None = Field(default=None, description="As in a PodSpec.")
    resources: Block | None = Field(default=None, description="As in a Container; the accelerator's resource is added.")
    env: list[Block] = Field(default_factory=list, description="As in a Container.")
    volumes: list[Block] = Field(default_factory=list, description="As in a PodSpec.")
    volume_mounts: list[Block] = Field(default_factory=list, description="As in a Container.")
