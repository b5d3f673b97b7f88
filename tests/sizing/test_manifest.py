from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest
from decodepool_sizing.errors import BadManifest
from decodepool_sizing.kv import KVType
from decodepool_sizing.manifest import DecodePool, load_manifest

from tests.sizing.manifest_cases import FAULTS, SMALLEST, WHOLE, changed


def test_the_smallest_manifest_has_defaults() -> None:
    spec = load_manifest(json.dumps(SMALLEST)).spec
    assert (spec.kv_type, spec.replicas, spec.suspend, spec.sessions_per_worker) == (KVType.F16, 1, False, None)
    assert (spec.accelerator.type, spec.accelerator.count, spec.drain.timeout_seconds) == ("nvidia", 1, 300)
    assert (spec.gateway.replicas, spec.gateway.queue_seconds, spec.gateway.tolerations) == (2, 10, None)
    assert spec.model.source.host_path is not None


def test_the_whole_manifest_is_read() -> None:
    pool = load_manifest(WHOLE)
    assert (pool.metadata.name, pool.metadata.namespace) == ("llama", "team")
    assert pool.spec.kv_type is KVType.Q8_0
    assert pool.spec.cache_reserve == 4 << 30
    assert pool.spec.accelerator.memory == 40 << 30
    assert pool.spec.model.cache is not None
    assert (pool.spec.model.cache.size, pool.spec.model.cache.access_mode) == (20 << 30, "ReadWriteMany")
    assert (pool.spec.gateway.replicas, pool.spec.gateway.queue_seconds) == (3, 120)
    assert pool.spec.autoscaling is not None
    assert pool.spec.autoscaling.max_replicas == 4
    assert pool.spec.template is not None
    assert pool.spec.template.node_selector == {"gpu": "h100"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_with_the_fields_path(name: str) -> None:
    path, value, text = FAULTS[name]
    with pytest.raises(BadManifest, match=text) as caught:
        load_manifest(changed(path, value))
    assert len(caught.value.faults) == 1
    assert "\n" not in caught.value.faults[0]


URLS = (
    "http://x",
    "https://user:pass@hub.example:8443/a/b.gguf?token=secret",
    "http://[fd00::1]:65535/a[1].gguf",
    "http://127.0.0.1:8000/models/a%20b.gguf?x=1#y",
    "http://a_b.example?x",
)


@pytest.mark.parametrize("url", ["https://user:sesame@a host/x?sesame", "https://h:99999/x?sesame#sesame"])
def test_what_is_secret_in_a_url_is_not_told_of_it(url: str) -> None:
    with pytest.raises(BadManifest, match="does not match") as caught:
        load_manifest(changed("spec.model.source", {"http": {"url": url}}))
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_can_be_taken_apart_is_taken(url: str) -> None:
    http = load_manifest(changed("spec.model.source", {"http": {"url": url}})).spec.model.source.http
    assert http is not None
    assert http.url == url
    assert urlsplit(url).hostname


def test_all_faults_are_told_at_once() -> None:
    document = json.loads(changed("spec.replicas", -1))
    document["spec"] |= {"kvType": "q17", "contextTokens": 0}
    with pytest.raises(BadManifest) as caught:
        load_manifest(json.dumps(document))
    assert {fault.split(":")[0] for fault in caught.value.faults} == {
        "spec.replicas",
        "spec.kvType",
        "spec.contextTokens",
    }


TEXTS = {
    "nothing": ("", "0 documents in this text, expected one: a DecodePool alone"),
    "two documents": (WHOLE + "\n---\n" + WHOLE, "2 documents in this text, expected one: a DecodePool alone"),
    "a list": ("- a", "expected a mapping"),
    "numbers for keys": ("1: a", "expected a mapping"),
    "a key twice": ("a: 1\na: 2", "line 2, column 1: the key 'a' comes twice"),
    "a key twice further in": ("a:\n  b: 1\n  b: 2", "line 3, column 3: the key 'b' comes twice"),
    "a list for a key": ("? [a]\n: 1", "line 1"),
    "half a mapping": ("{", "line 1, column 2"),
    "a tab": ("a:\n\tb: 1", "line 2, column 1"),
    "a Python object": ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
    "an unknown alias": ("a: *b", "found undefined alias"),
    "too deep": ("[" * 5000, "nested too deep"),
    "a control character": ("a: \x01", "special characters are not allowed"),
    "too long": ("a" * (1 << 21), "the text has 2097152 characters, more than 1048576"),
    "a digit without end": ("a: " + "1" * 5000, "limit"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_manifest_is_refused_in_a_line(name: str) -> None:
    text, reason = TEXTS[name]
    with pytest.raises(BadManifest, match=reason) as caught:
        load_manifest(text)
    assert len(caught.value.faults) == 1


def test_a_bomb_of_aliases_is_refused_in_a_moment() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    with pytest.raises(BadManifest):
        load_manifest("\n".join(lines))


def test_a_merge_key_may_be_overridden() -> None:
    text = "x: &x {a: 1}\ny: {<<: *x, a: 2}"
    with pytest.raises(BadManifest, match="x: unknown field"):
        load_manifest(text)


def test_every_field_of_the_spec_is_described_and_every_number_bounded() -> None:
    schema = DecodePool.model_json_schema()
    for name, definition in schema["$defs"].items():
        if name == "Metadata" or definition["description"].startswith("As in a"):  # Kubernetes' own
            continue
        for field, rules in definition.get("properties", {}).items():
            assert rules.get("description") or rules.get("$ref"), f"{name}.{field} has no description"
            kinds = [rules, *rules.get("anyOf", [])]
            for kind in kinds:
                if kind.get("type") == "integer" and "x-kubernetes-int-or-string" not in rules:
                    assert {"minimum", "maximum"} <= set(kind), f"{name}.{field} has no bounds"
