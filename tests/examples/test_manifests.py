"""The example manifests hold pools that the models take; tests/chart applies them to a real API server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from decodepool_sizing.manifest import DecodePool, parse_manifest

from tests.chart.exported import series
from tests.examples.manifests import EXAMPLES, MANIFESTS, objects, pools

EACH = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)


def read(name: str) -> DecodePool:
    (pool,) = pools(EXAMPLES / f"{name}.yaml")
    return parse_manifest(pool)


@EACH
def test_every_manifest_has_one_sound_pool(manifest: Path) -> None:
    assert len(pools(manifest)) == 1
    assert parse_manifest(pools(manifest)[0]).metadata.name


@EACH
def test_every_manifest_begins_by_saying_what_it_is(manifest: Path) -> None:
    assert manifest.read_text().startswith("# ")


@EACH
def test_no_example_asks_a_default_class_for_a_volume_that_most_clouds_have_not(manifest: Path) -> None:
    """Block storage is ReadWriteOnce: the claim of several workers would have no volume, for ever."""
    cache = parse_manifest(pools(manifest)[0]).spec.model.cache
    assert cache is None or cache.storage_class_name
    written = re.sub(r"(?m)^    # (cache: \{.*?\}).*", r"    \1", manifest.read_text())
    for document in yaml.safe_load_all(written):
        if document["kind"] == "DecodePool":
            assert parse_manifest(document), "what is commented out is sound"


def test_no_two_pools_have_one_name() -> None:
    names = [pools(manifest)[0]["metadata"]["name"] for manifest in MANIFESTS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_one_autoscaler_scales_a_pool(name: str) -> None:
    """An outside one and spec.autoscaling would write against each other."""
    pool, scaler = objects(EXAMPLES / f"{name}.yaml")
    assert "autoscaling" not in pool["spec"]
    target = scaler["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": pool["apiVersion"], "kind": pool["kind"], "name": pool["metadata"]["name"]}


def test_kedas_query_asks_for_series_that_gateways_export() -> None:
    _, scaler = objects(EXAMPLES / "keda.yaml")
    (trigger,) = scaler["spec"]["triggers"]
    asked = set(re.findall(r"decodepool_\w+", trigger["metadata"]["query"]))
    assert asked
    assert asked <= series()


def test_thresholds_are_seventy_percent_of_the_sessions() -> None:
    _, hpa = objects(EXAMPLES / "hpa.yaml")
    _, keda = objects(EXAMPLES / "keda.yaml")
    (metric,) = hpa["spec"]["metrics"]
    for name, threshold in {
        "hpa": metric["object"]["target"]["averageValue"],
        "keda": keda["spec"]["triggers"][0]["metadata"]["threshold"],
    }.items():
        sessions = read(name).spec.sessions_per_worker
        assert sessions is not None
        assert int(threshold) == sessions * 70 // 100


def test_the_private_pool_names_secrets_that_are_beside_it() -> None:
    *secrets, _ = objects(EXAMPLES / "private.yaml")
    held = {secret["metadata"]["name"]: secret["stringData"] for secret in secrets}
    spec = read("private").spec
    assert spec.auth is not None
    assert spec.model.source.http is not None
    assert spec.model.source.http.secret_ref is not None
    for reference in (spec.auth.secret_ref, spec.model.source.http.secret_ref):
        assert reference.key in held[reference.name]


def test_the_sidecars_application_is_labelled_for_its_pool() -> None:
    pool, deployment = objects(EXAMPLES / "sidecar.yaml")
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"]["decodepool.dev/sidecar-of"] == pool["metadata"]["name"]
    assert "127.0.0.1:8000" in template["spec"]["containers"][0]["args"][0]
    assert read("sidecar").spec.replicas == 0
