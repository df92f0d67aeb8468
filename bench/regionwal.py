"""The region WAL beside librdkafka alone, which writes and reads the same keys and values in the same minutes.

One node, synced; 1,000 tables with rows of 200 bytes in batches of 500, a million of them live. What the WAL adds are
sequence numbers, fencing and the map from sequences to offsets, and the rule that a write returns when it is durable.
Both sides run in processes of their own, so that what counts is their CPU and not ours.
"""

import json
import os
import statistics
from contextlib import closing
from functools import partial

from bench.processes import Server, serving_node, started
from bench.raw_client import RawClient
from bench.regionwal_roles import BATCH_ROWS, KEY_BYTES, REGION, ROW_BYTES, TABLES, VALUE_BYTES, Outcome
from bench.rounds import Line, percentile, spread
from bench.scratch import scratch

MB = 1_000_000
LIVE_ENTRIES = 1_000_000
WRITERS = 4
ALONE_BATCHES = 200
ROUNDS = 2
LOG_BYTES = LIVE_ENTRIES * (KEY_BYTES + VALUE_BYTES)
NAMESPACE = "bench"
DATA_TOPIC = f"{NAMESPACE}_data_{REGION}"
BARE = "bare"
AFTER_BATCHES = 20  # written after the last snapshot, before a recovery that has to read them

RECOVER_READ_SHARE = 0.001  # of the log, at most, after a clean stop
REPLAY_ENTRIES = 300_000  # a CPU second
REPLAY_MB = 100
MAP_BYTES = 1_000_000


def regionwal() -> list[Line]:
    with scratch() as folder, serving_node(folder) as server:
        with closing(RawClient(server.address)) as client:
            client.create(BARE)
        run = partial(_run, folder, server)
        return [*_writes(run), _clean_recovery(run), *_replays(run), _crash_recovery(run), _map(folder)]


def _run(folder: str, server: Server, role: str, *arguments: object) -> Outcome:
    return _role(folder, role, server.bootstrap, *map(str, arguments))


def _role(folder: str, *arguments: str) -> Outcome:
    with started(["bench.regionwal_roles", *arguments], os.path.join(folder, f"{arguments[0]}.log")) as program:
        program.await_ready(b"ready")
        return json.loads(program.last_words())


def _rate(outcome: Outcome, entries: int) -> float:
    return entries / outcome["seconds"]


def _writes(run: "partial[Outcome]") -> list[Line]:
    """Alone: one caller that waits for each batch. Then several, until a million entries are live."""
    lines: list[Line] = []
    left = LIVE_ENTRIES // BATCH_ROWS
    for writers, batches, flush in ((1, ALONE_BATCHES, ["flush"]), (WRITERS, left - ALONE_BATCHES, [])):
        before = run("produce", BARE, batches, *flush)
        ours = run("write", NAMESPACE, batches, writers)
        entries = batches * BATCH_ROWS
        ratio = before["seconds"] / ours["seconds"]
        rate, bare_rate = _rate(ours, entries), _rate(before, entries)
        p50, p99 = (percentile(ours["latencies_ms"], share) for share in (0.5, 0.99))
        waiting = "which waits as well" if flush else "which does not wait"
        cpu_us, bare_cpu_us = (outcome["cpu_s"] * 1e6 / entries for outcome in (ours, before))
        lines.append(
            Line(
                f"region WAL, write: {writers} caller{'s' if writers > 1 else ''}, batches of {BATCH_ROWS}",
                f"{ratio:.2f} of bare",
                note=f"{rate * ROW_BYTES / MB:.0f} MB/s, {rate:,.0f} entries/s, {cpu_us:.1f} CPU µs each; "
                f"a batch p50 {p50:.1f}, p99 {p99:.1f} ms; librdkafka alone, {waiting}: {bare_rate:,.0f}/s, "
                f"{bare_cpu_us:.1f} µs",
                raw={"ours": {**ours, "latencies_ms": [p50, p99]}, "bare": before, "entries": entries},
            )
        )
    return lines


def _clean_recovery(run: "partial[Outcome]") -> Line:
    """The writer was closed: its last snapshot says it all."""
    taken = run("recover", NAMESPACE)
    share = taken["bytes"] / LOG_BYTES
    return Line(
        f"region WAL, recovery of {taken['live']:,} entries after a clean stop",
        f"{taken['seconds'] * 1e3:.0f} ms",
        f"reads < {RECOVER_READ_SHARE:.1%} of the log",
        share < RECOVER_READ_SHARE and taken["live"] == LIVE_ENTRIES,
        f"{taken['records']:,} records, {taken['bytes']:,} bytes read of {LOG_BYTES:,}",
        raw=taken,
    )


def _crash_recovery(run: "partial[Outcome]") -> Line:
    """Some batches lie behind the last snapshot, written by a process that ended without a word."""
    entries = AFTER_BATCHES * BATCH_ROWS
    run("write", NAMESPACE, AFTER_BATCHES, 1, "crash")
    taken = run("recover", NAMESPACE)
    least = entries * (KEY_BYTES + VALUE_BYTES)
    return Line(
        f"region WAL, recovery with {entries:,} entries behind the snapshot",
        f"{taken['seconds'] * 1e3:.0f} ms",
        "reads these and < 1% more",
        taken["records"] < entries * 1.01 and taken["live"] == LIVE_ENTRIES + entries,
        f"{taken['records']:,} records, {taken['bytes']:,} bytes read, of which theirs are {least:,}",
        raw=taken,
    )


def _replays(run: "partial[Outcome]") -> list[Line]:
    ours: list[Outcome] = []
    bare: list[Outcome] = []
    for _ in range(ROUNDS):
        bare.append(run("consume", DATA_TOPIC, LIVE_ENTRIES))
        ours.append(run("replay", NAMESPACE))
    assert all(round_["entries"] == LIVE_ENTRIES for round_ in ours)
    log_mb = LOG_BYTES / MB
    ratios = [b["seconds"] / o["seconds"] for o, b in zip(ours, bare, strict=True)]
    cpu_s, bare_cpu_s = (statistics.median(round_["cpu_s"] for round_ in rounds) for rounds in (ours, bare))
    seconds = statistics.median(round_["seconds"] for round_ in ours)
    entries, mb = LIVE_ENTRIES / cpu_s, log_mb / cpu_s
    return [
        Line(
            f"region WAL, replay of {TABLES:,} tables, {LIVE_ENTRIES:,} entries",
            f"{statistics.median(ratios):.2f} of bare",
            note=f"{spread(ratios, 2)}; by the clock {LIVE_ENTRIES / seconds:,.0f} entries/s, "
            f"{log_mb / seconds:.0f} MB/s; librdkafka alone {LIVE_ENTRIES / bare_cpu_s:,.0f} entries a CPU second",
            raw={"ours": ours, "bare": bare},
        ),
        Line(
            "region WAL, replay on one core",
            f"{entries:,.0f}/s",
            f"≥ {REPLAY_ENTRIES:,} entries and {REPLAY_MB} MB a CPU second",
            entries >= REPLAY_ENTRIES and mb >= REPLAY_MB,
            f"{mb:.0f} MB, a CPU second of the reading process, librdkafka's threads included",
        ),
    ]


def _map(folder: str) -> Line:
    held = _role(folder, "map", str(LIVE_ENTRIES))
    return Line(
        f"region WAL, map of {held['held']:,} contiguous sequences",
        f"{held['bytes']:,} B",
        f"< {MAP_BYTES / MB:.0f} MB",
        held["most_bytes"] < MAP_BYTES and held["held"] == LIVE_ENTRIES,
        f"at most {held['most_bytes']:,} B while it grew",
    )
