"""What has to be written again, and what others may add in peace."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.planner.differences import agrees, needs_writing, stamped
from decodepool_operator.planner.state import Object

WANTED: Object = {
    "metadata": {"name": "x", "labels": {"a": "b"}},
    "spec": {"ports": [{"port": 80}], "off": False, "none": {}},
}
DIFFERENT: dict[str, Object] = {
    "another value": {"spec": {"ports": [{"port": 81}]}},
    "one item more": {"spec": {"ports": [{"port": 80}, {"port": 443}]}},
    "a field gone": {"spec": {}},
    "a label gone": {"metadata": {"name": "x", "labels": {}}},
    "switched on": {"spec": {"ports": [{"port": 80}], "off": True}},
}


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_live_object_that_lost_what_was_wanted_is_written_again(name: str) -> None:
    live = {**WANTED, **DIFFERENT[name]}
    assert not agrees(WANTED, live)


def test_a_live_object_with_more_than_was_wanted_is_left_alone() -> None:
    wanted = stamped(WANTED)
    live: Object = {
        "metadata": {
            **wanted["metadata"],
            "uid": "1",
            "annotations": {**wanted["metadata"]["annotations"], "mine": "1"},
        },
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}], "filledIn": 1},
        "status": {},
    }
    assert not needs_writing(wanted, live)
    assert needs_writing(stamped({**WANTED, "spec": {"ports": [{"port": 80}]}}), live), (
        "a field was taken out of the spec"
    )


def container(**parts: Any) -> Object:
    return {"name": "decodepool", "args": ["serve"], **parts}


POD: Object = {
    "containers": [
        container(env=[{"name": "A", "value": "1"}], volumeMounts=[{"name": "t", "mountPath": "/tmp"}]),
    ],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "mine"}],
    "volumes": [{"name": "t", "emptyDir": {}}],
    "rules": [{"verbs": ["get"]}],
    "ports": [{"port": 8000}],
}
ADDED: dict[str, Object] = {
    "a toleration": {"tolerations": [{"key": "team", "value": "x"}, *POD["tolerations"]]},
    "a pull secret": {"imagePullSecrets": [{"name": "theirs"}, {"name": "mine"}]},
    "a container before": {"containers": [{"name": "mesh"}, *POD["containers"]]},
    "a variable": {
        "containers": [{**POD["containers"][0], "env": [{"name": "B"}, {"name": "A", "value": "1", "x": "y"}]}]
    },
    "a mount and a volume": {
        "volumes": [{"name": "ca"}, *POD["volumes"]],
        "containers": [
            {
                **POD["containers"][0],
                "volumeMounts": [{"name": "ca", "mountPath": "/ca"}, *POD["containers"][0]["volumeMounts"]],
            }
        ],
    },
}
TAKEN: dict[str, Object] = {
    "the toleration": {"tolerations": [{"key": "team"}]},
    "the variable": {"containers": [container(env=[{"name": "B", "value": "1"}])]},
    "the variable's value": {"containers": [container(env=[{"name": "A", "value": "2"}])]},
    "the mount": {"containers": [container(env=[{"name": "A", "value": "1"}], volumeMounts=[])]},
    "the pull secret": {"imagePullSecrets": []},
    "an argument more": {"containers": [{**POD["containers"][0], "args": ["serve", "--x"]}]},
    "a right more": {"rules": [{"verbs": ["get"]}, {"verbs": ["delete"]}]},
    "a verb more": {"rules": [{"verbs": ["get", "delete"]}]},
    "a port more that others may reach": {"ports": [{"port": 8000}, {"port": 22}]},
}


@pytest.mark.parametrize("name", sorted(ADDED))
def test_what_a_policy_adds_to_a_list_is_no_difference(name: str) -> None:
    """Else it is applied, and added again, for ever."""
    assert agrees(POD, {**POD, **ADDED[name]})


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_what_is_taken_from_a_list_or_gives_more_rights_is_a_difference(name: str) -> None:
    assert not agrees(POD, {**POD, **TAKEN[name]})
