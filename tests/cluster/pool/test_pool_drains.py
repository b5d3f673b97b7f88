"""Workers that come and go under streams: what runs ends by the drain rules, on the emptiest worker first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until
from decodepool_sizing.session_ids import tag_of, worker_tag

from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.pools import Object, Pool, Stream, host_path
from tests.serving.http_client import Client

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

MODEL = host_path("SmolLM2-135M-Instruct.Q4_1.gguf")
CONTEXT = 8192
"""Minutes of a stream."""
DRAIN_SECONDS = 12
STOP_DELAY_SECONDS = 2
PROMPT = [504, 2365, 6354, 16438]


@pytest.fixture(scope="module")
def made(pools: Pools) -> Pool:
    """Workers with two places each."""
    drain = {"timeoutSeconds": DRAIN_SECONDS}
    return pools("wide").make(MODEL, contextTokens=CONTEXT, sessionsPerWorker=2, drain=drain)


@pytest.fixture
def wide(made: Pool) -> Iterator[Pool]:
    yield made.wait_ready()
    made.endpoint().close_all()


def begin(client: Client) -> Stream:
    """A stream that would go on for minutes."""
    session = client.post("/v1/sessions", {"tokens": PROMPT}, 201)["id"]
    stream = Stream(client, session, {"max_tokens": CONTEXT - 100})
    wait_until(stream.tokens, "the first token", 60)
    return stream


def of(stream: Stream, pods: list[Object]) -> str:
    """The pod that a stream runs on."""
    names = {worker_tag(pod["metadata"]["uid"]): str(pod["metadata"]["name"]) for pod in pods}
    return names[str(tag_of(stream.session))]


def check_drained(stream: Stream, told: float) -> None:
    """It went on while it could, and ended with an event that says why, without a gap."""
    last = stream.end(60)
    lasted = time.monotonic() - told
    assert last["event"] == "error"
    assert last["data"]["error"]["code"] == "draining", last
    assert DRAIN_SECONDS - 1 <= lasted <= DRAIN_SECONDS + STOP_DELAY_SECONDS + 8
    positions = [each["data"]["position"] for each in stream.events() if each.get("event") == "token"]
    assert positions == list(range(positions[0], positions[0] + len(positions)))


def names(pool: Pool) -> set[str]:
    """The pods that are still there, ending ones too."""
    return {str(each["metadata"]["name"]) for each in pool.pods()}


def replicas(pool: Pool) -> int:
    return int(pool.deployment()["spec"]["replicas"])


def test_a_deleted_worker_takes_nobody_in_and_ends_what_runs_by_the_drain_rules(wide: Pool, cluster: Cluster) -> None:
    """A13, a pod that goes cuts live sessions: one is deleted."""
    client, (pod,) = wide.endpoint(), wide.pods()
    stream = begin(client)
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace > STOP_DELAY_SECONDS + DRAIN_SECONDS
    worker, name = wide.worker(pod), pod["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "-n", wide.namespace, "--wait=false")
    told = time.monotonic()
    drains = 'decodepool_pool_workers{state="draining"} 1.0'
    wait_until(lambda: drains in client.call("GET", "/metrics").text, "the gateway to know of it", 5)
    assert client.call("GET", "/readyz").status == 200, "clients are told, not refused"
    wait_until(lambda: worker.call("GET", "/readyz").status == 503, "the worker to say so", STOP_DELAY_SECONDS + 3)
    refused = worker.call("POST", "/v1/sessions", {"tokens": PROMPT})
    assert (refused.status, refused.json["error"]["code"]) == (503, "draining")
    assert int(refused.headers["Retry-After"]) > 0
    placed = client.call("POST", "/v1/sessions", {"tokens": PROMPT})
    assert placed.status == 503 or tag_of(placed.json["id"]) != tag_of(stream.session)
    assert "1 worker emptied" in wide.wait_condition("Draining", "Draining", DRAIN_SECONDS - 2)
    before = len(stream.tokens())
    wait_until(lambda: len(stream.tokens()) > before, "the stream to go on", 5)
    check_drained(stream, told)
    wide.wait_ready()
    wait_until(lambda: name not in names(wide), "the pod to be gone", 30)


def test_scaling_down_takes_the_emptiest_workers_and_leaves_the_streams_of_the_fullest(wide: Pool) -> None:
    """A13, a pod that goes cuts live sessions: fewer are wanted."""
    client = wide.endpoint()
    kept = begin(client)
    wide.scale(3)
    wide.wait_ready()
    full = of(kept, wide.pods())
    other = begin(client)
    second = begin(wide.worker(next(each for each in wide.pods() if each["metadata"]["name"] == full)))
    assert of(other, wide.pods()) != full, "a new session goes where there is most room"
    wait_until(lambda: wide.status()["sessions"]["summary"] == "3/6", "the sessions in the status", 30)
    wide.scale(1)
    told = time.monotonic()
    wait_until(lambda: wide.status().get("draining"), "the drain to be told", 20)
    check_drained(other, told)
    wide.wait_ready()
    wait_until(lambda: names(wide) == {full}, "the others to be gone", 30)
    before = len(kept.tokens()), len(second.tokens())
    wait_until(lambda: len(kept.tokens()) > before[0], "the fullest worker's first stream to go on")
    wait_until(lambda: len(second.tokens()) > before[1], "and its second")


def test_load_brings_workers_and_its_end_takes_them_away_under_running_streams(wide: Pool) -> None:
    client = wide.endpoint()
    wide.change(autoscaling={"maxReplicas": 3, "targetUtilizationPercent": 35, "scaleDownDelaySeconds": 3})
    wide.wait_ready()
    kept, brief = begin(client), begin(client)
    home = of(kept, wide.pods())
    wait_until(lambda: replicas(wide) == 3, "three workers for two sessions of which each is to have three places", 40)
    wide.wait_ready()
    assert wide.status()["autoscaling"]["wantedReplicas"] == 3
    client.call("DELETE", f"/v1/sessions/{brief.session}")
    wait_until(lambda: replicas(wide) == 2, "one to go", 60)
    wide.wait_ready()
    assert home in names(wide)
    before = len(kept.tokens())
    wait_until(lambda: len(kept.tokens()) > before, "the stream to go on")
    client.call("DELETE", f"/v1/sessions/{kept.session}")
    wait_until(lambda: replicas(wide) == 1, "the last but one to go", 60)
    wide.wait_ready()
