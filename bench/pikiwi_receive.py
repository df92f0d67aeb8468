"""Receiving from PikiwiDB: items of 100-byte commands, durable in the WAL and acknowledged, on one core.

The sender is a process of its own on another core. The floor takes the same bytes from it with a bare loop: finds the
frames, writes them to a file as they are, fdatasyncs, acknowledges; no protobuf, no records, no checks.

    python -m bench.pikiwi_receive take|floor PORT FOLDER MESSAGES      one round, in its own process
"""

import asyncio
import gc
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from bench.pikiwi_sender import ITEMS_A_MESSAGE
from bench.processes import serving, started
from bench.rounds import Line, compare, spread
from bench.scratch import scratch
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import REPLICATION_PORT_DISTANCE, encode_frame
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.receiver import COLLECT_AFTER, Receiver

MESSAGES = 2_000
ROUNDS = 3
TARGET = 100_000  # items a second
POLL_S = 0.002


def pikiwi_receive() -> list[Line]:
    items = MESSAGES * ITEMS_A_MESSAGE
    cpu_s: dict[str, list[float]] = {"take": [], "floor": []}
    with scratch() as folder, serving(["bench.pikiwi_sender", str(MESSAGES)], os.path.join(folder, "log")) as sender:
        number = 0

        def one_round(kind: str) -> Callable[[], float]:
            def run() -> float:
                nonlocal number
                number += 1
                place = os.path.join(folder, f"{kind}-{number}")
                os.mkdir(place)
                arguments = ["bench.pikiwi_receive", kind, str(sender.address[1]), place, str(MESSAGES)]
                with started(arguments, os.path.join(place, "log")) as program:
                    outcome = json.loads(program.last_words())
                cpu_s[kind].append(outcome["cpu_s"])
                return outcome["seconds"]

            return run

        comparison = compare(one_round("take"), one_round("floor"), ROUNDS)
    rates = [items / seconds for seconds in comparison.ours]
    floors = [items / seconds for seconds in comparison.floor]
    cpu_us = min(cpu_s["take"]) / items * 1e6
    return [
        Line(
            "receive, 100-byte commands, WAL synced, one core",
            f"{max(rates):,.0f}/s",
            f"≥ {TARGET:,} items/s",
            max(rates) >= TARGET,
            f"{spread(rates)}; {cpu_us:.1f} CPU µs an item; floor {spread(floors)}/s, "
            f"{min(cpu_s['floor']) / items * 1e6:.1f} CPU µs",
            {"rates": rates, "floor": floors, "cpu_s": cpu_s},
        )
    ]


# --- one round, in a process -----------------------------------------------------------------------------------------


async def _take(port: int, folder: Path, count: int) -> tuple[float, float]:
    config = Config(
        master_port=port - REPLICATION_PORT_DISTANCE,
        filenum=0,
        offset=0,
        initial_full_sync=False,
        wal_dir=folder / "wal",
        checkpoint_path=folder / "checkpoint.json",
    )
    receiver = Receiver(config)
    running = asyncio.create_task(receiver.run())
    progress = receiver.progress.database("db0")
    while not progress.items:  # noqa: ASYNC110 - a look costs the receiver less than telling somebody
        await asyncio.sleep(POLL_S)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    while progress.durable_seq < count * ITEMS_A_MESSAGE:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    taken = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    receiver.stop()
    await running
    return taken


def _floor(port: int, folder: Path, count: int) -> tuple[float, float]:
    requests = Requests(ClientNode("127.0.0.1", 1))
    acknowledgement = encode_frame(requests.acknowledge("db0", Position(0, 1), Position(0, 1), 1))
    file = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with socket.create_connection(("127.0.0.1", port)) as master:
        for greeting in (requests.meta_sync(""), requests.try_sync("db0", ZERO)):
            master.sendall(encode_frame(greeting))
            master.recv(4096)
        master.sendall(encode_frame(requests.begin_stream("db0", ZERO, 1)))
        held = master.recv(1 << 18)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        received = 0
        while received < count:
            at = frames = 0
            while len(held) - at >= 4 and len(held) - at - 4 >= (length := struct.unpack_from(">I", held, at)[0]):
                at += 4 + length
                frames += 1
            if frames:
                os.write(file, held[:at])
                os.fdatasync(file)
                master.sendall(acknowledgement * frames)
                received += frames
            held = held[at:] + (master.recv(1 << 20) if received < count else b"")
        return time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    kind, port, folder, count = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    if kind == "take":  # as `tidelog pikiwi receive` does it
        gc.set_threshold(*COLLECT_AFTER)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seconds, cpu_s = runner.run(_take(port, folder, count))
    else:
        seconds, cpu_s = _floor(port, folder, count)
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
