"""`tidelog demo`: three real nodes, and a `kill -9` in the middle of everything.

First the log: an idempotent producer writes while the leader of a stream is killed: the others elect a new one, and the
dead node is started again and catches up. Then a consumer group reads everything back. Every acknowledged record must
be where it was acknowledged, once, and in order.

Then the data pipeline (`demo_pipeline.py`): a PikiwiDB master's data in topics and in a table, another leader killed.
Meanwhile the first half's stream has gone to an object store, from where Spark reads it at last (`demo_history.py`).
"""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin documents these names as its API, but does not mark them as exported)

import argparse
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError

if TYPE_CHECKING:
    from tidelog.cli.embedded import EmbeddedCluster

STREAM = "demo"
NODES = 3
PARTITIONS = 3
RECORDS = 60_000
KILL_AFTER = RECORDS // 2
WAIT_S_MAX = 60.0  # for anything in the story; it takes a few seconds
PATIENCE_S = 0.1

# A client that looks for the new leader at once: librdkafka's own pauses would be most of what is measured.
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 20,
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("demo", help="three nodes: write, kill the leader, lose nothing")
    parser.add_argument("--dir", help="keep the nodes' data here (default: a temporary folder, removed at the end)")
    parser.add_argument("--port", type=int, default=0, help="port of the first node (default: free ones)")
    parser.add_argument("--exit", action="store_true", help="end when the story is told")
    parser.add_argument("--log-only", action="store_true", help="without the data pipeline, which takes a minute")


def run(options: argparse.Namespace) -> int:
    from tidelog.cli import demo_history
    from tidelog.cli.embedded import EmbeddedCluster

    begun = time.monotonic()
    folder = options.dir or tempfile.mkdtemp(prefix="tidelog-demo-")
    tiered = demo_history.is_there()
    try:
        cluster = EmbeddedCluster(
            folder,
            NODES,
            options.port,
            sets=["group.initial.rebalance.delay.ms=0", *(demo_history.node_settings(Path(folder)) if tiered else ())],
            say=lambda text: print(f"  ({text})"),
        )

        def end(_number: int, _frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, end)
        try:
            writing = _tell(cluster, demo_history.TOPIC_SETTINGS if tiered else {})
            if not options.log_only:
                _tell_of_pipeline(cluster, Path(folder), writing, begun, tiered=tiered, stay=not options.exit)
            elif not options.exit:
                _stay(cluster)
        except KeyboardInterrupt:
            pass
        finally:
            cluster.stop()
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _stay(cluster: "EmbeddedCluster") -> None:
    print(f"ready bootstrap={cluster.bootstrap}; try: tidelog cluster status --bootstrap {cluster.bootstrap}")
    print("Ctrl-C stops it", flush=True)
    cluster.run()


def _tell(cluster: "EmbeddedCluster", topic_settings: dict[str, str]) -> "_Writing":
    """What was written, and how long what the killed node led took no record."""
    begun = time.monotonic()
    cluster.start()
    print(f"{NODES} nodes serve after {time.monotonic() - begun:.1f} s: {cluster.bootstrap}")
    leaders = _create(cluster, STREAM, topic_settings)
    print(f"created stream {STREAM}: {PARTITIONS} partitions, each on {NODES} nodes, led by {_list(leaders.values())}")
    begun = time.monotonic()
    writing = _Writing(cluster, leaders)
    writing.run()
    acknowledged = writing.acknowledged
    print(
        f"wrote {len(acknowledged)} records in {time.monotonic() - begun:.1f} s, "
        f"each on the disks of a majority before it was acknowledged"
    )
    print(
        f"node {writing.victim} was killed (-9) after {KILL_AFTER} of them; what it led took the next record after "
        f"{writing.outage_ms:.0f} ms, from {_list(set(_leaders(cluster, STREAM).values()))}"
    )
    _compare(acknowledged, _read(cluster, len(acknowledged)))
    print(f"two consumers of one group read {len(acknowledged)} records: all there, once, in order", flush=True)
    return writing


def _list(nodes: Any) -> str:
    numbers = sorted(set(nodes))
    return ("node " if len(numbers) == 1 else "nodes ") + ", ".join(map(str, numbers))


def _tell_of_pipeline(
    cluster: "EmbeddedCluster", folder: Path, writing: "_Writing", begun_s: float, *, tiered: bool, stay: bool
) -> None:
    from tidelog.cli import demo_history, demo_pipeline

    if missing := demo_pipeline.what_is_missing():
        print(f"the data pipeline is not shown: {missing}", flush=True)
        if stay:
            _stay(cluster)
        return
    for topic in (demo_pipeline.SNAPSHOT_TOPIC, demo_pipeline.BINLOG_TOPIC):
        _create(cluster, topic)

    def kill(topic: str) -> int:
        victim = _leaders(cluster, topic)[0]
        cluster.kill(victim)
        return victim

    story = demo_pipeline.Story(cluster, folder / "shop", kill)
    try:
        outcome = story.tell()
        history = demo_history.History(cluster, folder, STREAM).read() if tiered else None
        demo_pipeline.show(outcome, writing.outage_ms)
        if history is not None:
            written = ((partition, value) for (partition, _), value in writing.acknowledged.items())
            demo_history.show(history, demo_history.summed(written))
        else:
            print("history in an object store is not shown: obstore is not installed, `make setup` does it", flush=True)
        print(f"all of it took {time.monotonic() - begun_s:.0f} s", flush=True)
        if stay:
            print(f"try: {story.to_try}")
            _stay(cluster)
    finally:
        story.stop()


def _create(cluster: "EmbeddedCluster", stream: str, settings: dict[str, str] | None = None) -> dict[int, int]:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(_quiet(cluster))
    give_up = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            wanted = NewTopic(stream, PARTITIONS, NODES, config=settings or {})
            admin.create_topics([wanted])[stream].result(WAIT_S_MAX)
            break
        except KafkaException as exception:
            if time.monotonic() > give_up:
                raise CommandError(f"the stream could not be made: {exception.args[0].str()}") from None
            time.sleep(PATIENCE_S)
    leaders = _leaders(cluster, stream)
    while len(leaders) < PARTITIONS and time.monotonic() < give_up:
        time.sleep(PATIENCE_S)
        leaders = _leaders(cluster, stream)
    return leaders


def _leaders(cluster: "EmbeddedCluster", stream: str) -> dict[int, int]:
    """Partition -> the node that leads it."""
    from tidelog.cli.admin import Admin

    admin = Admin(cluster.bootstrap)
    try:
        return {row.partition: row.leader for row in admin.partitions(stream) if row.leader > 0}
    finally:
        admin.close()


class _Writing:
    """All records written, and a leader killed in the middle of it."""

    def __init__(self, cluster: "EmbeddedCluster", leaders: dict[int, int]) -> None:
        self._cluster = cluster
        self.victim = leaders[0]
        self._lost = {partition for partition, node in leaders.items() if node == self.victim}
        self._killed_at = 0.0
        self.outage_ms = 0.0
        self.acknowledged: dict[tuple[int, int], bytes] = {}  # by (partition, offset)
        self._failures: list[str] = []

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({**_quiet(self._cluster), "enable.idempotence": True, "linger.ms": 5})
        for number in range(RECORDS):
            producer.produce(STREAM, b"record %d" % number, key=b"%d" % number, on_delivery=self._delivered)
            producer.poll(0)
            if number == KILL_AFTER:
                self._killed_at = time.monotonic()
                self._cluster.kill(self.victim)
        left, give_up = len(producer), time.monotonic() + WAIT_S_MAX
        while left and time.monotonic() < give_up:
            left = producer.flush(PATIENCE_S)
            self._cluster.tend()
        if self._failures or left or len(self.acknowledged) != RECORDS:
            raise CommandError(f"{left} records were not answered, {len(self._failures)} failed: {self._failures[:1]}")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))
            return
        self.acknowledged[message.partition(), message.offset()] = message.value()
        # The first one that was written after the kill, of those that the dead node led.
        if (
            not self.outage_ms
            and self._killed_at
            and message.partition() in self._lost
            and _number(message) > KILL_AFTER
        ):
            self.outage_ms = (time.monotonic() - self._killed_at) * 1000


def _number(message: Any) -> int:
    return int(message.value().split()[1])


def _read(cluster: "EmbeddedCluster", count: int) -> dict[tuple[int, int], bytes]:
    from confluent_kafka import Consumer

    found: dict[tuple[int, int], bytes] = {}
    group = {**_quiet(cluster), "group.id": "demo-readers", "auto.offset.reset": "earliest"}
    consumers = [Consumer(group) for _ in range(2)]
    try:
        for consumer in consumers:
            consumer.subscribe([STREAM])
        give_up = time.monotonic() + WAIT_S_MAX
        while len(found) < count and time.monotonic() < give_up:
            cluster.tend()
            for consumer in consumers:
                messages: list[Any] = consumer.consume(1_000, PATIENCE_S)
                for message in messages:
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
    finally:
        for consumer in consumers:
            consumer.close()
    return found


def _quiet(cluster: "EmbeddedCluster") -> dict[str, Any]:
    """What every client here is told; it need not tell us that a node is gone, since we killed it."""
    return {"bootstrap.servers": cluster.bootstrap, "log_level": 0, **QUICK}


def _compare(acknowledged: dict[tuple[int, int], bytes], found: dict[tuple[int, int], bytes]) -> None:
    wrong = sum(found.get(place) != value for place, value in acknowledged.items())
    if wrong or len(found) != len(acknowledged):
        raise CommandError(f"{wrong} acknowledged records are not where they were; {len(found)} were read")
    for partition in range(PARTITIONS):
        values = [found[place] for place in sorted(found) if place[0] == partition]
        numbers = [int(value.split()[1]) for value in values]
        if numbers != sorted(numbers):
            raise CommandError(f"partition {partition} is out of order")
