"""Rows about waiting: until a record is acknowledged, until a consumer has it; and catching up with what is there."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from bench.arena import FLOOR, KIB, MB, Arena, Round
from bench.cluster import ROUND_TRIES_MAX, Shape
from bench.contenders import HOST, KAFKA, TIDELOG, Contender
from bench.figures import Figure
from bench.frames import batch_of, fetch_frame, produce_frame, records_in
from bench.load_client import Outcome, outcome_of
from bench.processes import ProgramFailed
from bench.raw_client import RawClient
from bench.side_by_side_produce import cpu_s_per_gb, rates

PACED_LINGER_MS = 1  # short, so that it is the log one waits for; the same for both
PACED_ROUNDS_LONGER = 2.0  # than others: a percentile wants many samples
SKIPPED_S = 0.5
FOLLOW_EXTRA_S = 20.0
FILL_S_MAX = 50.0
RAW_READ_BYTES = 128 * MB
READ_BATCH_BYTES, READ_WINDOW = 64 * KIB, 32
READ_AT_ONCE_BYTES = 1 * MB
ONE_RECORD = Shape("1 KiB", KIB, 1, 1)


def percentiles(rounds: list[Round[Outcome]], name: str) -> list[float]:
    return [one.outcome.latencies_ms[name] for one in rounds]


def _latencies(
    row: str, name: str, measured: dict[str, list[Round[Outcome]]], p50_target: str, p99_target: str
) -> list[Figure]:
    ours, theirs = measured[TIDELOG], measured.get(KAFKA, [])
    peer = KAFKA if theirs else ""
    return [
        Figure(row, f"{name}: {share}", "ms", percentiles(ours, share), peer, percentiles(theirs, share), target)
        for share, target in (("p50", p50_target), ("p99", p99_target))
    ]


def latency(arena: Arena, mb_per_s: int) -> list[Figure]:
    """A paced load of 1 KiB records on one stream."""
    seconds = SKIPPED_S + arena.effort.seconds * PACED_ROUNDS_LONGER
    with arena.used_topic() as topic:
        measured = arena.each(lambda who: _pace(arena, who, topic, mb_per_s, seconds))
    return _latencies(f"latency-{mb_per_s}", f"produce at {mb_per_s} MB/s", measured, "<= 1.0", "<= 0.3")


def _pace(arena: Arena, who: Contender, topic: str, mb_per_s: int, seconds: float) -> Outcome:
    return arena.client.run("pace", bootstrap=who.bootstrap, topic=topic, **paced(mb_per_s, seconds))


def paced(mb_per_s: int, seconds: float) -> dict[str, object]:
    """Arguments of the role `pace`."""
    return {
        "value_bytes": KIB,
        "rate": mb_per_s * MB // KIB,
        "seconds": seconds,
        "skip_seconds": SKIPPED_S,
        "linger_ms": PACED_LINGER_MS,
    }


def end_to_end(arena: Arena, mb_per_s: int = 20) -> list[Figure]:
    """From when a record is made to when a consumer in another process has it."""
    seconds = SKIPPED_S + arena.effort.seconds * PACED_ROUNDS_LONGER
    rate = mb_per_s * MB // KIB
    with arena.used_topic() as topic:

        def follow(who: Contender) -> Outcome:
            arguments = {
                "consumers": 1,
                "count": int(rate * seconds) - 1,
                "skip": int(rate * SKIPPED_S),
                "seconds": seconds + FOLLOW_EXTRA_S,
            }
            with arena.client.started("follow", bootstrap=who.bootstrap, topic=topic, **arguments) as follower:
                _pace(arena, who, topic, mb_per_s, seconds)
                return outcome_of(follower)

        measured = arena.each(follow)
    return _latencies("end-to-end", f"end to end at {mb_per_s} MB/s", measured, "<= 1.0", "<= 0.3")


def one_record(arena: Arena, connections: int) -> list[Figure]:
    """One record of 1 KiB a request, the next when it is acknowledged, on each of so many connections."""
    row, batch = f"one-{connections}", batch_of(KIB, KIB)
    with arena.used_topic() as topic, arena.floor(ONE_RECORD, connections) as bare:
        actions: dict[str, tuple[Contender | None, Callable[[], Outcome]]] = {
            name: (who, lambda w=who: requests(arena, w, topic, batch, connections))
            for name, who in arena.contenders.items()
        }
        actions[FLOOR] = (None, lambda: ready_made(arena, bare.port, bare.frame, error_position(topic), connections))
        measured = arena.alternate(actions)
    ours, theirs, floor = measured[TIDELOG], measured.get(KAFKA, []), measured[FLOOR]
    name = f"one record a request, {connections} connection{'s' if connections > 1 else ''}"
    if connections == 1:
        return [
            *_latencies(row, name, measured, "<= 1.2", ""),
            Figure(row, f"{name}: p50", "ms", percentiles(ours, "p50"), FLOOR, percentiles(floor, "p50")),
        ]
    rate = [one.outcome.records_per_s for one in ours]
    peer = KAFKA if theirs else ""
    return [
        Figure(row, name, "requests/s", rate, peer, [one.outcome.records_per_s for one in theirs], ">= 1.5"),
        Figure(row, name, "requests/s", rate, FLOOR, [one.outcome.records_per_s for one in floor]),
        *_latencies(row, name, measured, "", ""),
    ]


def requests(
    arena: Arena, who: Contender, topic: str, batch: bytes, connections: int, skip_s: float = SKIPPED_S / 2
) -> Outcome:
    """A ready-made Produce to the topic's leader, again and again."""
    frame, tries_left = produce_frame(topic, batch), ROUND_TRIES_MAX
    while True:
        try:
            port = who.ports[who.leader_of(topic)]
            return ready_made(arena, port, frame, error_position(topic), connections, skip_s)
        except ProgramFailed as failure:  # the leader has changed in the middle of a round, which does not count
            tries_left -= 1
            if not tries_left:
                raise
            arena.remarks.append(f"a round of ready-made requests to {who.name} was run again: {failure}")
            time.sleep(1.0)


def ready_made(
    arena: Arena, port: int, frame: bytes, error_at: int, connections: int, skip_s: float = SKIPPED_S / 2
) -> Outcome:
    """`records` of the outcome are the requests behind the first `skip_s`."""
    path = Path(os.path.join(arena.folder, "frame"))
    path.write_bytes(frame)
    asked = {"frame": path, "error_at": error_at, "connections": connections}
    lasting = {"seconds": arena.effort.seconds, "skip_seconds": skip_s}
    return arena.client.run("requests", host=HOST, port=port, **asked, **lasting)


def error_position(topic: str) -> int:
    """Of the error code in an answer to Produce 9 about one partition: correlation id, tags, topics, name, partitions,
    partition."""
    return 4 + 1 + 1 + (1 + len(topic)) + 1 + 4


def raw_read(arena: Arena) -> list[Figure]:
    """Ready-made Fetch requests over one connection, one at a time: what the servers give when the client costs
    nothing."""
    batch = batch_of(READ_BATCH_BYTES)
    count, per_batch = min(RAW_READ_BYTES, arena.effort.history_bytes) // len(batch), records_in(batch)
    total = count * len(batch)
    with ExitStack() as stack, arena.topic() as topic:
        clients: dict[str, RawClient] = {}
        for name, who in arena.contenders.items():
            clients[name] = stack.enter_context(closing(who.connect(who.leader_of(topic))))
            clients[name].produce(topic, batch, count, READ_WINDOW)

        def frame_at(position: int) -> bytes:
            return fetch_frame(topic, position // len(batch) * per_batch, READ_AT_ONCE_BYTES)

        measured = arena.each(
            lambda who: Outcome(clients[who.name].read_whole(frame_at, total, len(batch)), count * per_batch, total)
        )
    ours, theirs = measured[TIDELOG], measured.get(KAFKA, [])
    peer, name = KAFKA if theirs else "", "bare reader, 1 MB answers"
    return [
        Figure("raw-read", name, "MB/s", rates(ours), peer, rates(theirs)),
        Figure("raw-read", f"{name}: CPU of all nodes a GB", "s", cpu_s_per_gb(ours), peer, cpu_s_per_gb(theirs)),
    ]


def catch_up(arena: Arena, *, cold: bool = False) -> list[Figure]:
    """All of a stream from its beginning, by one consumer; `cold`: nothing of it is in the page cache."""
    row = "catch-up-cold" if cold else "catch-up"
    with arena.topic() as topic:
        filled = [
            arena.produce(contender, topic, bytes_max=arena.effort.history_bytes, seconds=FILL_S_MAX)
            for contender in arena.contenders.values()
        ]
        records = min(outcome.records for outcome in filled)

        def consume(who: Contender) -> Outcome:
            return arena.client.run("consume", bootstrap=who.bootstrap, topic=topic, partitions=1, records=records)

        def consume_cold(who: Contender) -> Outcome:
            who.drop_page_cache()
            return consume(who)

        measured = arena.each(consume_cold if cold else consume)
    ours, theirs = measured[TIDELOG], measured.get(KAFKA, [])
    peer, name = KAFKA if theirs else "", "catch-up consume, " + ("page cache dropped" if cold else "warm")
    return [
        Figure(row, name, "MB/s", rates(ours), peer, rates(theirs), ">= 0.9", arena.client.name),
        Figure(row, f"{name}: CPU of all nodes a GB", "s", cpu_s_per_gb(ours), peer, cpu_s_per_gb(theirs), "<= 1.0"),
    ]
