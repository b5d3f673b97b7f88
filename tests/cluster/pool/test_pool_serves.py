"""The example's pool serves: exactly, through its endpoint, and told in words that a person can use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from decodepool_cluster import product
from decodepool_cluster.cluster import Cluster

from tests.cluster.pool.pools import Pool
from tests.cluster.shell.plane import Plane

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

GOLDEN = Path(__file__).parents[2] / "engine" / "golden_smollm2.json"
REFERENCES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["prompts"]


@pytest.fixture(scope="module")
def applied(cluster: Cluster) -> Iterator[Pool]:
    cluster.kubectl("apply", "-f", str(product.EXAMPLE))
    yield Pool(Plane(cluster), "default", product.POOL)
    cluster.kubectl("delete", "-f", str(product.EXAMPLE), "--ignore-not-found")


@pytest.fixture
def served(applied: Pool) -> Pool:
    return applied.wait_ready()


def test_the_openai_client_streams_from_the_endpoint_of_the_status(served: Pool) -> None:
    endpoint = served.endpoint()
    with openai.OpenAI(base_url=f"http://{endpoint.host}:{endpoint.port}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {
            "model": client.models.list().data[0].id,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 24,
        }
        parts = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)]
        whole = client.chat.completions.create(**asked).choices[0].message.content
    assert "".join(parts) == whole == "The capital of France is Paris."
    assert len([part for part in parts if part]) > 3, "the answer came in one piece"


@pytest.mark.parametrize("reference", REFERENCES[:3], ids=lambda each: each["prompt"].split()[0])
def test_greedy_tokens_are_the_references_and_the_workers_own(reference: dict[str, Any], served: Pool) -> None:
    for client in (served.endpoint(), served.worker()):
        session = client.post("/v1/sessions", {"tokens": reference["tokens"]}, 201)["id"]
        told = client.decode(session, max_tokens=len(reference["greedy"]), ignore_eos=True)
        client.call("DELETE", f"/v1/sessions/{session}")
        assert told["tokens"] == reference["greedy"]


def test_the_capacity_is_the_one_that_was_computed(served: Pool) -> None:
    status = served.status()
    plan, measured = status["plan"], status["measured"]
    assert status["sessions"]["capacity"] == plan["sessionsPerWorker"] == 8
    assert plan["reserveBytes"] == 8 * plan["sessionBytes"]
    assert abs(measured["differencePercent"]) <= 3
    assert served.endpoint().get("/v1/capacity")["sessions"]["capacity"] == 8


def test_kubectl_tells_what_a_person_asks_first(served: Pool, cluster: Cluster) -> None:
    header, row = cluster.kubectl("get", "dpool", "smollm2", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "MODEL", "SESSIONS", "READY", "CONTEXT", "AGE", "RESERVE", "GPU", "REASON"]
    assert re.fullmatch(r"smollm2 +SmolLM2-135M-Instruct.Q4_1 +\d/8 +1/1 +2048 +\S+ +361.5 MiB +cpu +\w+ *", row), row
    told = cluster.kubectl("describe", "dpool", "smollm2")
    assert "1 worker ready for 8 sessions" in told
    assert re.search(
        r"Normal +AllWorkersReady .*decodepool-operator +Ready is True: 1 worker ready for 8 sessions", told
    )
    assert "Warning" not in told, "a pool that came up as it should has no warnings"
