"""The demo's last step: the stream of its first half has left the nodes' disks, and Spark reads it from the store.

The store is a folder here. Closed segments of the stream go there soon, and from the disks a little later. Then a Spark
job of its own (this module, run as a program) reads the whole stream with `tier.path`: straight from the folder, in
ranges inside the segments. What it found is compared with what was acknowledged, partition by partition: how many
records, and the sum of their checksums.
"""

import argparse
import importlib.util
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.cli import CommandError
from tidelog.cli.admin import Admin, Refused
from tidelog.cli.demo_processes import Child
from tidelog.cli.embedded import EmbeddedCluster
from tidelog.cli.link import Unreachable

LOCAL_MS = 5_000  # how long the disks keep what is in the store; a segment is closed at this age, too
LOOK_MS = 1_000  # how often nodes look for what to copy, and for what may go
TOPIC_SETTINGS = {"remote.storage.enable": "true", "local.retention.ms": str(LOCAL_MS)}
ASK_S_MAX = 5.0
WAIT_S_MAX = 300.0  # for any one thing; on two idle cores each takes seconds
TURN_S = 0.2
TELL_S = 5.0
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}

Found = Mapping[int, tuple[int, int]]
"""Of a partition: records, and the sum of their values' CRC-32."""


def is_there() -> bool:
    """Whether what reaches stores is installed."""
    return importlib.util.find_spec("obstore") is not None


def store_url(folder: Path) -> str:
    return (folder.absolute() / "store").as_uri()


def node_settings(folder: Path) -> list[str]:
    (folder / "store").mkdir(parents=True, exist_ok=True)
    return [
        "remote.log.storage.system.enable=true",
        f"remote.log.store.url={store_url(folder)}",
        f"remote.log.manager.task.interval.ms={LOOK_MS}",
        f"retention.check.ms={LOOK_MS}",
    ]


def summed(records: Iterable[tuple[int, bytes]]) -> Found:
    """Partitions and values."""
    found: dict[int, tuple[int, int]] = {}
    for partition, value in records:
        count, total = found.get(partition, (0, 0))
        found[partition] = (count + 1, total + zlib.crc32(value))
    return found


@dataclass(frozen=True, slots=True)
class Read:
    """What the Spark job found, and what it took."""

    found: Found
    seconds: float
    through_brokers: int  # bytes that brokers fetched from the store meanwhile

    @property
    def records(self) -> int:
        return sum(count for count, _ in self.found.values())


class History:
    def __init__(self, cluster: EmbeddedCluster, folder: Path, stream: str) -> None:
        self._cluster = cluster
        self._folder = folder
        self._stream = stream

    def read(self) -> Read:
        """When the disks have let go of everything."""
        self._until_stored()
        size = sum(path.stat().st_size for path in (self._folder / "store").rglob("*.log"))
        print(
            f"the nodes' disks have let go of {self._stream}; its {size:,} bytes are in {self._folder / 'store'}",
            flush=True,
        )
        before = self._fetched_by_nodes()
        begun = time.monotonic()
        outcome = self._folder / "history.json"
        words = ["--bootstrap", self._cluster.bootstrap, "--stream", self._stream, "--tier", store_url(self._folder)]
        command = [sys.executable, "-m", "tidelog.cli.demo_history", *words, "--outcome", str(outcome)]
        reading = Child("history", self._folder, command)
        try:
            self._wait(lambda: reading.ended, "Spark has read the history", "Spark is reading it from there")
        finally:
            reading.stop()
        seconds = time.monotonic() - begun
        told: dict[str, tuple[int, int]] = json.loads(outcome.read_text())
        found = {int(partition): (count, total) for partition, (count, total) in told.items()}
        return Read(found, seconds, self._fetched_by_nodes() - before)

    def _fetched_by_nodes(self) -> int:
        """Bytes that nodes have read from the store for their clients so far."""
        by_node = {each["node"]["node"]: each["topic"]["RemoteFetchBytes"] for each in self._statuses()}
        return sum(by_node.values())

    def _until_stored(self) -> None:
        def stored() -> bool:
            return all(
                each["local_start_offset"] == each["copied_until"] == each["high_watermark"]
                for each in self._statuses()
            )

        self._wait(stored, "all of the stream is in the store and none of it on disk", "history is on its way")

    def _statuses(self) -> list[dict[str, Any]]:
        """Of all partitions, as their leaders have it."""
        give_up = time.monotonic() + WAIT_S_MAX
        while True:
            admin = Admin(self._cluster.bootstrap)
            try:
                return [
                    admin.call_node(row.leader, "tier-status", ASK_S_MAX, topic=row.topic, partition=row.partition)
                    for row in admin.partitions(self._stream)
                ]
            except (Refused, Unreachable) as error:
                if time.monotonic() > give_up:
                    raise CommandError(f"{self._stream}: how it is stored cannot be learned: {error}") from None
            finally:
                admin.close()
            self._cluster.run(TURN_S)

    def _wait(self, done: Callable[[], bool], what: str, told: str) -> None:
        give_up = time.monotonic() + WAIT_S_MAX
        tell_at = time.monotonic() + TELL_S
        while not done():
            self._cluster.run(TURN_S)
            now = time.monotonic()
            if now > give_up:
                raise CommandError(f"after {WAIT_S_MAX:.0f} s it is still not so that {what}")
            if now > tell_at:
                tell_at = now + TELL_S
                print(f"  {told}", flush=True)


def show(read: Read, written: Found) -> None:
    """A line of the summary; CommandError when the store has something else than was acknowledged."""
    same = read.found == written
    print(
        f"  history equals what was acknowledged: {'yes' if same else 'no'}, {read.records:,} records read by Spark in "
        f"{read.seconds:.1f} s from the store, {read.through_brokers:,} bytes of it through a node",
        flush=True,
    )
    if not same:
        raise CommandError(f"in the store are {dict(read.found)}, acknowledged were {dict(written)}")


def main() -> None:
    """The Spark job."""
    from pyspark.sql import functions as sql

    from tidelog.spark.session import session

    parser = argparse.ArgumentParser(prog="python -m tidelog.cli.demo_history")
    for name in ("bootstrap", "stream", "tier", "outcome"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    spark = session("tidelog demo", settings=QUICK)
    try:
        rows = (
            spark.read.format("tidelog")
            .option("kafka.bootstrap.servers", options.bootstrap)
            .option("subscribe", options.stream)
            .option("columns", "partition,value")
            .option("tier.path", options.tier)
            .load()
        )
        found = rows.groupBy("partition").agg(sql.count("*"), sql.sum(sql.crc32("value"))).collect()
        Path(options.outcome).write_text(json.dumps({partition: (count, total) for partition, count, total in found}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
