"""`tidelog demo`: a real node, an ordinary Kafka client, and a `kill -9` in the middle of it.

An idempotent producer writes while the node is killed and started again; then a consumer group reads everything back.
Every acknowledged record must be where it was acknowledged, once, and in order.
"""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin documents these names as its API, but does not mark them as exported)

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tidelog.cli import CommandError

STREAM = "demo"
PARTITIONS = 4
RECORDS = 40_000
KILL_AFTER = RECORDS // 2
WAIT_S_MAX = 60.0  # for anything in the story; it takes a few seconds


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("demo", help="write, kill the node, lose nothing")
    parser.add_argument("--dir", help="keep the node's data here (default: a temporary folder, removed at the end)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--exit", action="store_true", help="end when the story is told")


def run(options: argparse.Namespace) -> int:
    folder = options.dir or tempfile.mkdtemp(prefix="tidelog-demo-")
    node = _Node(folder, options.port)
    try:
        _tell(node)
        if not options.exit:
            print(f"ready bootstrap={node.bootstrap}; try: tidelog consume {STREAM} --bootstrap {node.bootstrap}")
            print("Ctrl-C stops it", flush=True)
            node.process.wait()
    except KeyboardInterrupt:
        pass
    finally:
        node.stop()
        if options.dir is None:
            shutil.rmtree(folder)
    return 0


class _Node:
    """A `tidelog server` process."""

    def __init__(self, folder: str, port: int) -> None:
        self._folder = folder
        self._port = port
        self.start()

    def start(self) -> None:
        sets = [f"data.dir={self._folder}", f"port={self._port}", "group.initial.rebalance.delay.ms=0"]
        command = [sys.executable, "-m", "tidelog.cli", "server"]
        for text in sets:
            command += ["--set", text]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # ends when the node is ready, or dead
        if not line.startswith("ready"):
            raise CommandError("the node did not start; what it said stands above")
        self.bootstrap = line.split("bootstrap=")[1].strip()
        self._port = int(self.bootstrap.rsplit(":", 1)[1])

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(WAIT_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()


def _tell(node: _Node) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    print(f"node 1 listens on {node.bootstrap}")
    admin = AdminClient(_quiet(node))
    admin.create_topics([NewTopic(STREAM, PARTITIONS, 1)])[STREAM].result(WAIT_S_MAX)
    print(f"created stream {STREAM} with {PARTITIONS} partitions")
    begun = time.monotonic()
    acknowledged, outage_ms = _write(node)
    print(
        f"wrote {len(acknowledged)} records, each on disk before it was acknowledged, "
        f"in {time.monotonic() - begun:.1f} s; the node was killed (-9) after {KILL_AFTER}, "
        f"and was back in {outage_ms:.0f} ms"
    )
    _compare(acknowledged, _read(node, len(acknowledged)))
    print(f"two consumers of one group read {len(acknowledged)} records: all there, once, in order", flush=True)


def _write(node: _Node) -> tuple[dict[tuple[int, int], bytes], float]:
    """What was acknowledged, by (partition, offset), and how long the node was away."""
    from confluent_kafka import Producer

    acknowledged: dict[tuple[int, int], bytes] = {}
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            acknowledged[message.partition(), message.offset()] = message.value()

    producer = Producer({**_quiet(node), "enable.idempotence": True, "linger.ms": 5})
    outage_ms = 0.0
    for number in range(RECORDS):
        producer.produce(STREAM, b"record %d" % number, key=b"%d" % number, on_delivery=delivered)
        producer.poll(0)
        if number == KILL_AFTER:
            begun = time.monotonic()
            node.kill()
            node.start()
            outage_ms = (time.monotonic() - begun) * 1000
    left = producer.flush(WAIT_S_MAX)
    if failures or left or len(acknowledged) != RECORDS:
        raise CommandError(f"{left} records were not answered, {len(failures)} failed: {failures[:1]}")
    return acknowledged, outage_ms


def _read(node: _Node, count: int) -> dict[tuple[int, int], bytes]:
    from confluent_kafka import Consumer

    found: dict[tuple[int, int], bytes] = {}
    group = {**_quiet(node), "group.id": "demo-readers", "auto.offset.reset": "earliest"}
    consumers = [Consumer(group) for _ in range(2)]
    try:
        for consumer in consumers:
            consumer.subscribe([STREAM])
        give_up = time.monotonic() + WAIT_S_MAX
        while len(found) < count and time.monotonic() < give_up:
            for consumer in consumers:
                messages: list[Any] = consumer.consume(1_000, 0.1)
                for message in messages:
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
    finally:
        for consumer in consumers:
            consumer.close()
    return found


def _quiet(node: _Node) -> dict[str, Any]:
    """What every client here is told; it need not tell us that the node is gone, since we killed it."""
    return {"bootstrap.servers": node.bootstrap, "log_level": 0}


def _compare(acknowledged: dict[tuple[int, int], bytes], found: dict[tuple[int, int], bytes]) -> None:
    wrong = sum(found.get(place) != value for place, value in acknowledged.items())
    if wrong or len(found) != len(acknowledged):
        raise CommandError(f"{wrong} acknowledged records are not where they were; {len(found)} were read")
    for partition in range(PARTITIONS):
        values = [found[place] for place in sorted(found) if place[0] == partition]
        numbers = [int(value.split()[1]) for value in values]
        if numbers != sorted(numbers):
            raise CommandError(f"partition {partition} is out of order")
