"""History read back from an object store, beside a bare loop of ranged GETs over the same objects in the same minutes.

One node, tiered to a folder, with next to nothing left on its disk. The reader is one connection that asks for a few
megabytes at a time; the bare loop asks a program that does nothing but ranged GETs of the same objects, in chunks of
the same size, over one connection too. Each round begins with a node that was started anew and an empty cache, so
that every byte comes from the store. Then: what a reader of history costs producers, and whether the disk stays
within its bounds under continuous load.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvloop

from bench.frames import admin, batch_of, create_topic, fetch_frame, records_in
from bench.processes import Server, serving, serving_node
from bench.raw_client import RawClient
from bench.rounds import Line, percentile, spread
from bench.scratch import scratch
from tidelog.tier.layout import CHUNK_BYTES
from tidelog.tier.store import Patience, open_store
from tidelog.wire.messages import CreateTopicsRequestConfig

MB, MIB = 1_000_000, 1 << 20
TOPIC = "history"
OTHER = "live"
SEGMENT_BYTES = 64 * MIB
BATCH = batch_of(256 << 10)
HISTORY_BYTES = 320 * MIB
FETCH_BYTES = 4 * MIB
CLIENT_BYTES = MIB  # what Kafka's clients ask for unless told otherwise
ROUNDS = 3
TURNS = 12  # alone and beside a reader, one after the other: what the disk does meanwhile meets both
PRODUCES = 400  # in each
SMALL = batch_of(16 << 10)
WAIT_S_MAX = 120.0
LOAD_MB_A_SECOND = 50
NEXT = b"next"
READ_ON = "read-on"
_SIZE = struct.Struct(">i")

MB_A_SECOND = 150
SHARE_OF_BARE = 0.6
GETS_FACTOR = 1.2
P99_FACTOR = 1.3
LOCAL_SEGMENTS_MAX = 2


@contextmanager
def _node(folder: str) -> Iterator[Server]:
    """With an empty cache."""
    for name in ("remote-log-chunk-cache", "remote-log-index-cache"):
        shutil.rmtree(os.path.join(folder, "data", name), ignore_errors=True)
    with serving_node(
        folder,
        storage_segment_bytes=SEGMENT_BYTES,
        retention_check_ms=100,
        remote_log_storage_system_enable="true",
        remote_log_store_url=f"file://{folder}/store",
        remote_log_manager_task_interval_ms=100,
        remote_fetch_max_wait_ms=10_000,
    ) as server:
        yield server


def tier() -> list[Line]:
    with scratch() as folder:
        with _node(folder) as server, closing(RawClient(server.address)) as client:
            _create(client, TOPIC)
            disk = _fill(client)
        ours: list[float] = []
        bare: list[float] = []
        gets: list[float] = []
        for _ in range(ROUNDS):
            with _node(folder) as server, closing(RawClient(server.address)) as client:
                until = _status(client)["local_start_offset"]
                ours.append(_read_history(client, until))
                status = _status(client)
                gets.append(status["node"]["chunk_cache"]["loads"] / (status["RemoteLogSizeBytes"] / CHUNK_BYTES))
                size = status["RemoteLogSizeBytes"]
            bare.append(_bare_gets(folder))
        with _node(folder) as server:
            produce = _produce_beside(server, folder)
    rate = [size / MB / seconds for seconds in ours]
    shares = [floor / seconds for seconds, floor in zip(ours, bare, strict=True)]
    share, best = sorted(shares)[ROUNDS // 2], sorted(rate)[ROUNDS // 2]
    worst = max(gets)
    return [
        Line(
            "tier: catch-up read, one connection", f"{best:.0f} MB/s", f"≥ {MB_A_SECOND}", best >= MB_A_SECOND,
            f"{spread(rate)}", {"mb_per_s": rate},
        ),
        Line(
            "tier: against bare ranged GETs", f"{share:.2f}", f"≥ {SHARE_OF_BARE}", share >= SHARE_OF_BARE,
            f"bare {spread([size / MB / seconds for seconds in bare])} MB/s", {"shares": shares},
        ),
        Line(
            "tier: GETs, of bytes / chunk size", f"{worst:.2f}", f"≤ {GETS_FACTOR}", worst <= GETS_FACTOR,
            "segments end inside a chunk", {"factors": gets},
        ),
        produce,
        disk,
    ]  # fmt: skip


def _create(client: RawClient, topic: str) -> None:
    request = create_topic(topic)
    request.topics[0].configs = [
        CreateTopicsRequestConfig(name="remote.storage.enable", value="true"),
        CreateTopicsRequestConfig(name="local.retention.bytes", value="1"),
    ]
    assert not client.call(request).topics[0].error_code


def _status(client: RawClient) -> dict[str, Any]:
    """Of the history's stream, as soon as it is led."""
    deadline = time.monotonic() + WAIT_S_MAX
    while (answer := client.call(admin("tier-status", topic=TOPIC, partition=0))).error_code:
        assert time.monotonic() < deadline, answer.error_message
        time.sleep(0.01)
    return json.loads(answer.content)


def _fill(client: RawClient) -> Line:
    """Write the history; the most that was on disk meanwhile, of which one segment is being written."""
    batches = HISTORY_BYTES // len(BATCH)
    most = 0
    begun = time.monotonic()
    for sent in range(0, batches, 16):
        client.produce(TOPIC, BATCH, 16, 8)
        most = max(most, _status(client)["local_bytes"])
        time.sleep(max(0.0, begun + sent * len(BATCH) / (LOAD_MB_A_SECOND * MB) - time.monotonic()))
    deadline = time.monotonic() + WAIT_S_MAX
    while _status(client)["local_bytes"] > SEGMENT_BYTES:
        assert time.monotonic() < deadline, "the disk does not empty"
        time.sleep(0.05)
    segments = most / SEGMENT_BYTES - 1
    return Line(
        "tier: most on disk under load", f"{segments:.1f} segments", f"≤ {LOCAL_SEGMENTS_MAX}",
        segments <= LOCAL_SEGMENTS_MAX, f"beside the one that is written, at {LOAD_MB_A_SECOND} MB/s", {"bytes": most},
    )  # fmt: skip


def _read_history(client: RawClient, until: int) -> float:
    """All that is only in the store, one request at a time."""
    records, offset = records_in(BATCH), 0
    begun = time.perf_counter()
    while offset < until:
        answer = client.exchange(fetch_frame(TOPIC, offset, FETCH_BYTES))
        batches = len(answer) // len(BATCH)
        assert batches, f"nothing came at {offset}"
        offset += batches * records
    return time.perf_counter() - begun


def _bare_gets(folder: str) -> float:
    """The same objects in chunks of the same size, one after the other, and nothing done with them."""
    arguments, log = ["bench.tier", f"{folder}/store"], os.path.join(folder, "bare.log")
    with serving(arguments, log) as server, closing(RawClient(server.address)) as client:
        begun = time.perf_counter()
        while len(client.exchange(NEXT)) > 1:
            pass
        return time.perf_counter() - begun


async def _serve_gets(root: str) -> None:
    """The floor: every frame asks for the next chunk; an answer of one byte is the end."""
    store = open_store(f"file://{root}", {}, Patience(), random.Random(1))
    objects = [each for each in await store.objects("") if each.name.endswith(".log")]
    ranges = [(each, position) for each in objects for position in range(0, each.size, CHUNK_BYTES)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            for each, position in ranges:
                await reader.readexactly(len(NEXT))
                data = await store.read(each.name, position, min(CHUNK_BYTES, each.size - position))
                writer.writelines((_SIZE.pack(len(data)), data))
                await writer.drain()
            await reader.readexactly(len(NEXT))
            writer.write(_SIZE.pack(1) + b"0")
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"ready bootstrap=127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def _produce_beside(server: Server, folder: str) -> Line:
    """One producer that waits for each batch, alone and while another program reads history as fast as it comes."""
    host, port = server.address
    log = os.path.join(folder, "reader.log")
    alone, beside, rates = [], [], []
    with closing(RawClient(server.address)) as client:
        client.create(OTHER)
        client.produce(OTHER, SMALL, PRODUCES, 1)
        for _ in range(TURNS):
            alone += client.produce(OTHER, SMALL, PRODUCES, 1).latencies_s
            with serving(["bench.tier", READ_ON, host, str(port)], log):
                beside += client.produce(OTHER, SMALL, PRODUCES, 1).latencies_s
            with open(log, encoding="ascii") as file:
                rates.append(float(file.read().split()[-1]))
    p99 = [percentile(values, 0.99) * 1_000 for values in (alone, beside)]
    factor = p99[1] / p99[0]
    return Line(
        "tier: produce p99 beside a reader", f"{factor:.2f}", f"≤ {P99_FACTOR}", factor <= P99_FACTOR,
        f"{p99[0]:.2f} ms alone, {p99[1]:.2f} ms beside {spread(rates)} MB/s", {"p99_ms": p99, "mb_per_s": rates},
    )  # fmt: skip


def _read_on(host: str, port: int) -> None:
    """A program of its own, so that it takes nothing from the one that measures: reads history again and again.

    When it is ended it says how many MB/s it got.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with closing(RawClient((host, port))) as client:
        until, records, offset = _status(client)["local_start_offset"], records_in(BATCH), 0
        print(f"ready bootstrap={host}:{port}", flush=True)
        begun, got = time.perf_counter(), 0
        try:
            while True:
                size = len(client.exchange(fetch_frame(TOPIC, offset, CLIENT_BYTES)))
                got += size
                offset += size // len(BATCH) * records
                offset = offset if offset < until else 0
        finally:
            print(f"{got / MB / (time.perf_counter() - begun):.0f}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1] == READ_ON:
        _read_on(sys.argv[2], int(sys.argv[3]))
    else:
        uvloop.run(_serve_gets(sys.argv[1]))
