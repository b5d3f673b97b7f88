"""Whatever a spec says that the schema takes, the planner has an answer: a plan, or a reason."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.planner.conditions import TYPES
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.resolution import source_key
from decodepool_operator.planner.state import Object
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.operator.pools import cluster, facts, gpu_pool, node, observed, pool
from tests.operator.simulation import START

GPU = "nvidia.com/gpu"
NODES = (
    node("a", {"nvidia.com/gpu.memory": "24576", "zone": "a"}),
    node("b", {"nvidia.com/gpu.product": "?"}, taints=[{"key": GPU, "effect": "NoSchedule"}]),
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
amounts = st.none() | st.integers(-(2**63), 2**63) | texts | st.sampled_from(["1Gi", "500m", "-1", "1e99", "0", ".5"])
resources = st.dictionaries(st.sampled_from(["cpu", "memory", GPU, "nvidia.com/mig-1g.10gb", "a/b", ""]), amounts)
requirements = st.fixed_dictionaries(
    {"key": texts, "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])},
    optional={"values": st.none() | st.lists(texts | st.sampled_from(["1", "a"]), max_size=2)},
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.none() | st.lists(requirements, max_size=2),
        "matchFields": st.none() | st.lists(requirements, max_size=1),
    },
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
blocks = st.dictionaries(st.sampled_from(["name", "topologyKey", "emptyDir", "x"]), anything, max_size=3)
affinities = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.none()
        | st.sampled_from(["x", [], {}])
        | st.fixed_dictionaries(
            {},
            optional={REQUIRED: st.none() | st.fixed_dictionaries({"nodeSelectorTerms": st.lists(terms, max_size=2)})},
        ),
        "podAffinity": st.none() | blocks,
    },
)
templates = st.fixed_dictionaries(
    {},
    optional={
        "labels": st.dictionaries(texts, texts, max_size=2),
        "nodeSelector": st.dictionaries(texts | st.just("zone"), texts, max_size=2),
        "affinity": affinities,
        "tolerations": st.lists(
            st.dictionaries(st.sampled_from(["key", "operator", "value", "effect"]), texts), max_size=2
        ),
        "resources": st.fixed_dictionaries(
            {}, optional={"limits": st.none() | resources, "requests": st.none() | resources}
        ),
        "env": st.lists(st.fixed_dictionaries({"name": texts}, optional={"value": texts}), max_size=2),
        "volumes": st.lists(blocks, max_size=2),
        "topologySpreadConstraints": st.lists(blocks, max_size=2),
        "image": st.just("a:1"),
    },
)
hosts = st.sampled_from(
    ["h", "h:80", "h:99999", "h:0", "[::1", "[::1]", "[1::2::3]:1", "u:p@h", "h\u2100", "[1.2.3.4]"]
)
paths = st.sampled_from(["/", "//", "/.", "a/b.gguf", "/x?y=[1]#z", "%", "%ff.gguf", "é.gguf", "..", "a b"])
sources = st.one_of(
    st.builds(lambda host, path: {"http": {"url": f"http://{host}/{path}"}}, hosts, paths),
    st.builds(lambda path: {"hostPath": {"path": f"/{path}"}}, paths),
    st.builds(lambda path: {"pvc": {"claimName": "c", "path": path}}, paths),
    st.builds(lambda path: {"image": {"reference": "a:1", "path": f"/{path}"}}, paths),
)
specs = st.fixed_dictionaries(
    {"model": st.builds(lambda source: {"source": source}, sources)},
    optional={
        "template": templates,
        "replicas": st.integers(0, 1000),
        "contextTokens": st.sampled_from([1, 100, 2**31]),
        "sessionsPerWorker": st.none() | st.integers(1, 256),
        "cacheReserve": st.sampled_from([1, "1Ei", "3Gi"]),
        "drain": st.builds(lambda seconds: {"timeoutSeconds": seconds}, st.integers(0, 86_400)),
    },
)
accelerators = st.sampled_from([
    {"type": "cpu"}, {"type": "cpu", "memory": 1}, {"type": "cpu", "memory": "1Ei"}, {"type": "nvidia"},
    {"type": "nvidia", "memory": 1}, {"type": "nvidia", "product": "?"}, {"type": "nvidia", "count": 16},
    {"type": "nvidia", "resource": "nvidia.com/mig-0g.0gb"}, {"type": "nvidia", "resource": "a/b", "memory": "1Ei"},
])  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(spec=specs, accelerator=accelerators)
@example(spec={"model": {"source": {"http": {"url": "http://h:99999/x.gguf"}}}}, accelerator={"type": "cpu"})
@example(spec={"model": {"source": {"http": {"url": "http://[::1/x"}}}}, accelerator={"type": "cpu"})
@example(spec={"template": {"resources": {"limits": {"memory": None}}}}, accelerator={"type": "cpu"})
@example(spec={"template": {"affinity": {"nodeAffinity": "x"}}}, accelerator={"type": "nvidia"})
def test_no_spec_breaks_the_planner(spec: Object, accelerator: Object) -> None:
    raw = known(pool(**{**spec, "accelerator": accelerator}))
    found = plan(raw, observed(raw, nodes=NODES), START)
    ready = next(each for each in found.status["conditions"] if each["type"] == "Ready")
    assert ready["observedGeneration"] == raw["metadata"]["generation"]
    assert found.status["observedGeneration"] == raw["metadata"]["generation"]


@settings(max_examples=200, deadline=None)
@given(before=specs, after=specs, accelerator=accelerators)
@example(
    before={"template": {"tolerations": [{"key": "a"}]}},
    after={"template": {"tolerations": [{"key": "b"}]}},
    accelerator={"type": "cpu"},
)
def test_no_edit_breaks_the_planner(before: Object, after: Object, accelerator: Object) -> None:
    first, second = (known(pool(**{**spec, "accelerator": accelerator})) for spec in (before, after))
    made = plan(first, observed(first, nodes=NODES), START).apply
    found = plan(second, observed(second, nodes=NODES, children=made), START)
    assert {each["type"] for each in found.status["conditions"]} == set(TYPES)


def known(raw: Object) -> Object:
    """A pool whose model has been read."""
    return {**raw, "status": {"model": {"source": source_key(raw), "facts": facts().to_json()}}}


ODD: dict[str, Object] = {
    "a port that no host has": {"model": {"source": {"http": {"url": "http://h:99999/x.gguf"}}}},
    "half a bracket": {"model": {"source": {"http": {"url": "http://[::1/x"}}}},
    "an affinity that is none": {"template": {"affinity": {"nodeAffinity": "x"}}},
}


@pytest.mark.parametrize("name", ODD)
def test_a_healthy_pool_that_is_edited_into_nonsense_says_so_and_goes_on(name: str) -> None:
    here = cluster(pool())
    here.run(10)
    here.edit(lambda spec: spec.update(ODD[name]))
    here.run(10)
    told = here.condition("Ready")
    assert (told["status"], told["reason"]) == ("False", "InvalidSpec")
    assert here.status["observedGeneration"] == 2
    assert len(here.ready_workers()) == 1


@pytest.mark.parametrize("make", [pool, gpu_pool])
def test_an_amount_that_is_null_is_no_amount(make: Any) -> None:
    raw = make(template={"resources": {"limits": {"memory": None, "cpu": None}, "requests": {"cpu": None}}})
    plain = make(template={"resources": {}})
    assert plan(raw, observed(raw), START).apply == plan(plain, observed(plain), START).apply
