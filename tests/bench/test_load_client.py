"""The C client and its Python twin do the same work, and say so in the same words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import load_client
from bench.contenders import HOST, Contender, running, tidelog
from bench.frames import batch_of, produce_frame
from bench.load_client import LoadClient, outcome_of
from bench.processes import ProgramFailed
from bench.side_by_side_latency import error_position

pytestmark = pytest.mark.slow

VALUE_BYTES = 512
RATE, SECONDS = 400, 1.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contender]:
    with running(tidelog(str(tmp_path_factory.mktemp("node")), nodes=1)) as contender:
        yield contender


@pytest.fixture(params=["C", "Python"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> LoadClient:
    if request.param == "Python":
        return LoadClient("Python", (load_client.PYTHON_TWIN,), str(tmp_path))
    made = load_client.load_client(str(tmp_path))
    if not made.name.startswith("C "):
        pytest.skip(made.name)
    return made


def topic_of(node: Contender, client: LoadClient, name: str) -> str:
    topic = f"{name}-{client.name[0].lower()}"
    node.create([topic], partitions=2 if name == "bulk" else 1)
    return topic


def test_what_was_produced_over_all_partitions_is_consumed(node: Contender, client: LoadClient):
    topic, size = topic_of(node, client, "bulk"), 1_000_000
    where = {"bootstrap": node.bootstrap, "topic": topic, "partitions": 2}
    load = {"topics": 1, "producers": 2, "value_bytes": VALUE_BYTES, "seconds": 30, "bytes_max": size, "linger_ms": 5}
    produced = client.run("produce", **where, **load)
    assert produced.records == 2 * (size // VALUE_BYTES // 2)
    assert (produced.bytes, produced.failed) == (produced.records * VALUE_BYTES, 0)
    consumed = client.run("consume", **where, records=produced.records)
    assert 0 <= consumed.records <= produced.records + 4, "what comes first does not count; four were sent before"
    assert consumed.bytes == consumed.records * VALUE_BYTES


def test_a_paced_load_is_as_long_as_it_should_be_and_reaches_who_follows(node: Contender, client: LoadClient):
    topic = topic_of(node, client, "paced")
    pace = {"value_bytes": VALUE_BYTES, "rate": RATE, "seconds": SECONDS, "skip_seconds": 0.2, "linger_ms": 1}
    follow = {"consumers": 1, "count": RATE * SECONDS, "skip": 10, "seconds": 30}
    with client.started("follow", bootstrap=node.bootstrap, topic=topic, **follow) as follower:
        paced = client.run("pace", bootstrap=node.bootstrap, topic=topic, **pace)
        followed = outcome_of(follower)
    assert paced.records == RATE * SECONDS
    assert paced.seconds >= SECONDS
    assert followed.records >= RATE * SECONDS
    for outcome in (paced, followed):
        latencies = outcome.latencies_ms
        assert 0 < latencies["p50"] <= latencies["p95"] <= latencies["p99"] <= latencies["p999"] <= latencies["max"]


def test_ready_made_requests_are_answered_on_all_connections(node: Contender, client: LoadClient, tmp_path: Path):
    topic = topic_of(node, client, "asked")
    frame = tmp_path / "frame"
    frame.write_bytes(produce_frame(topic, batch_of(VALUE_BYTES, VALUE_BYTES)))
    asked = {"frame": frame, "error_at": error_position(topic), "seconds": 0.3, "skip_seconds": 0.1}
    outcome = client.run("requests", host=HOST, port=node.ports[1], connections=8, **asked)
    assert outcome.records >= 8
    assert outcome.bytes == outcome.records * len(frame.read_bytes())


def test_a_refused_request_ends_the_client(node: Contender, client: LoadClient, tmp_path: Path):
    frame = tmp_path / "frame"
    frame.write_bytes(produce_frame("nowhere", batch_of(VALUE_BYTES, VALUE_BYTES)))
    asked = {"frame": frame, "error_at": error_position("nowhere"), "seconds": 0.3, "skip_seconds": 0.1}
    with pytest.raises(ProgramFailed, match="refused, error 3"):
        client.run("requests", host=HOST, port=node.ports[1], connections=1, **asked)
