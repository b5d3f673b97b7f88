from __future__ import annotations

import pytest
from decodepool_operator.shell.settings import BadSetting, Settings

IMAGES = {f"DECODEPOOL_{name}_IMAGE": name.lower() for name in ("WORKER", "WORKER_CUDA", "GATEWAY", "OPERATOR")}


def settings(**changes: str) -> Settings:
    return Settings.from_environment({**IMAGES, **{f"DECODEPOOL_{name}": value for name, value in changes.items()}})


def test_without_namespaces_the_whole_cluster_is_served() -> None:
    assert settings().clusterwide
    assert settings(NAMESPACES=" , ").clusterwide


def test_namespaces_are_a_list_and_nodes_are_then_not_read_unless_asked() -> None:
    some = settings(NAMESPACES="a, b")
    assert (some.namespaces, some.clusterwide, some.reads_nodes) == (("a", "b"), False, False)
    assert settings(NAMESPACES="a", READ_NODES="true").reads_nodes


@pytest.mark.parametrize(
    ("namespaces", "own", "heartbeat"),
    [("", "system", "system"), ("a,b", "system", "a"), ("a,b", "b", "b")],
    ids=["everywhere", "elsewhere", "among those served"],
)
def test_the_heartbeat_is_where_it_is_watched(namespaces: str, own: str, heartbeat: str) -> None:
    assert settings(NAMESPACES=namespaces, OPERATOR_NAMESPACE=own).heartbeat_namespace == heartbeat


def test_pod_monitors_have_the_labels_that_are_given() -> None:
    given = settings(POD_MONITOR_LABELS='{"release": "stack"}', POD_MONITOR_SECONDS="15").scraping
    assert (given.labels, given.interval_seconds) == ({"release": "stack"}, 15)
    assert (settings().scraping.labels, settings().scraping.interval_seconds) == ({}, None)


BAD = {
    "labels that are none": ("POD_MONITOR_LABELS", '{"release": 1}'),
    "labels in no JSON": ("POD_MONITOR_LABELS", "release=stack"),
    "scrapes without end": ("POD_MONITOR_SECONDS", "0"),
    "a port that is none": ("HTTP_PORT", "0"),
    "a port in words": ("WEBHOOK_PORT", "https"),
    "a start of no time": ("STARTUP_SECONDS", "1"),
    "a level nobody knows": ("LOG_LEVEL", "LOUD"),
    "no number of seconds": ("REPORT_SECONDS", "soon"),
    "not a number": ("AUDIT_SECONDS", "nan"),
    "a negative time": ("HEARTBEAT_SECONDS", "-1"),
    "neither yes nor no": ("READ_NODES", "perhaps"),
    "an image that is missing": ("WORKER_IMAGE", ""),
}


@pytest.mark.parametrize(("name", "value"), BAD.values(), ids=BAD)
def test_a_bad_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"DECODEPOOL_{name}"):
        settings(**{name: value})


def test_the_certificates_secret_has_the_webhooks_name() -> None:
    assert settings(WEBHOOK_SERVICE="decodepool-webhook").webhook_secret == "decodepool-webhook-cert"
