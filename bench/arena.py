"""Tidelog and Apache Kafka side by side on one machine, both running, one of them at work at a time.

Rounds are short and in turn, so both meet whatever else the machine does. Before a round everybody must have come to
rest, so that no one's background work (a collection, a clean-up) falls into another's round, and so must the disk: what
one has only put into the page cache, and the blocks of what was deleted, are work that it would do in the next round.

Where little is measured on one stream, that is one in use for a while (`used_topic`): its first segment is full, and
its oldest records go as new ones come. A new stream's first file still grows, which makes each write of it dearer; the
floor, which writes over blocks that were written before, has nothing of the kind. `new-stream` measures that.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bench.cluster import FloorCluster, Shape, floor_cluster
from bench.cluster_nodes import ClusterFailed
from bench.contenders import KAFKA, NODES, TIDELOG, Contender, kafka, running, tidelog
from bench.disks import settle_disks
from bench.figures import alternate
from bench.frames import batch_of
from bench.kept import Unavailable
from bench.load_client import LoadClient, Outcome, load_client
from bench.processes import ProgramFailed
from bench.scratch import scratch

KIB, MB = 1 << 10, 1_000_000
UNBOUNDED = 10**15
LINGER_MS = 5  # librdkafka's default
WARM_S = 4.0  # of load before anything is measured: a JVM compiles what is used often
FIRST_SEGMENT_BYTES = 300 * MB  # and some of the next
FIRST_WINDOW = 5
FLOOR = "floor"
FLOOR_SHAPE = Shape("64 KiB", 64 * KIB, 32, 1_000)

# What may go wrong in one row and must not take the others with it.
FAILURES = (ClusterFailed, ProgramFailed, Unavailable, OSError, AssertionError, ValueError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: the result's spread is what more of it buys."""

    rounds: int = 5
    warm_up: int = 2
    seconds: float = 2.0
    """Of one round of a load without an end."""
    history_bytes: int = 512 * MB
    """To catch up with."""
    kills: int = 3
    streams: int = 1_000
    kafka: bool = True
    """Whether it is there at all."""


QUICK = Effort(rounds=2, warm_up=1, seconds=0.8, history_bytes=96 * MB, kills=1, streams=200)


@dataclass(frozen=True, slots=True)
class Round(Generic[T]):
    outcome: T
    cpu_s: float
    """Of all nodes of the contender."""


@dataclass
class Arena:
    tidelog: Contender
    kafka: Contender | None
    client: LoadClient
    effort: Effort
    folder: str
    remarks: list[str] = field(default_factory=list)
    idle_mb: dict[str, float] = field(default_factory=dict)
    """The largest node's memory, before it did anything."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _used: list[tuple[Contender, str]] = field(default_factory=list)
    """Whose records go before every round."""

    @property
    def contenders(self) -> dict[str, Contender]:
        return {TIDELOG: self.tidelog} if self.kafka is None else {TIDELOG: self.tidelog, KAFKA: self.kafka}

    # Topics

    @contextmanager
    def topic(self, partitions: int = 1, only: Contender | None = None, **configs: object) -> Iterator[str]:
        """On all contenders, or one, and gone afterwards: what one row leaves behind is no other's cost."""
        name = f"bench-{next(self._numbers)}"
        owners = list(self.contenders.values()) if only is None else [only]
        for contender in owners:
            contender.create([name], partitions, {key.replace("_", "."): value for key, value in configs.items()})
            contender.await_home(name)
        yield name
        for contender in owners:
            contender.delete(name)

    @contextmanager
    def used_topic(self, only: Contender | None = None, **configs: object) -> Iterator[str]:
        """A topic whose stream has been in use for a while, and keeps what came since the round before."""
        with self.topic(1, only, **configs) as name:
            used = [(who, name) for who in (self.contenders.values() if only is None else [only])]
            for who, _ in used:
                with closing(who.connect(who.leader_of(name))) as client:
                    client.produce(name, batch_of(MB), FIRST_SEGMENT_BYTES // MB, FIRST_WINDOW)
            self._used += used
            yield name
            self._used = [item for item in self._used if item not in used]

    # Rounds

    def alternate(self, actions: Mapping[str, tuple[Contender | None, Callable[[], T]]]) -> dict[str, list[Round[T]]]:
        """Each action is somebody's; None: of one who is no contender, and whose CPU is not asked for."""
        metered = {name: lambda w=who, a=action: self._metered(w, a) for name, (who, action) in actions.items()}
        return alternate(metered, self.effort.rounds, self.effort.warm_up)

    def each(self, action: Callable[[Contender], T]) -> dict[str, list[Round[T]]]:
        """The same done to every contender, in turn."""
        return self.alternate({name: (who, lambda w=who: action(w)) for name, who in self.contenders.items()})

    def _metered(self, who: Contender | None, action: Callable[[], T]) -> Round[T]:
        for contender, topic in self._used:
            with closing(contender.connect(contender.leader_of(topic))) as client:
                client.delete_before(topic, contender.latest_offset(topic))
        for contender in self.contenders.values():
            contender.settle()
        settle_disks()
        before_s = who.cpu_s() if who else 0.0
        outcome = action()
        return Round(outcome, who.cpu_s() - before_s if who else 0.0)

    # The load that many rows share

    def produce(
        self,
        who: Contender,
        topic: str,
        *,
        value_bytes: int = KIB,
        partitions: int = 1,
        producers: int = 1,
        topics: int = 1,
        bytes_max: int = UNBOUNDED,
        seconds: float | None = None,
    ) -> Outcome:
        return self.client.run(
            "produce",
            bootstrap=who.bootstrap,
            topic=topic,
            topics=topics,
            partitions=partitions,
            producers=producers,
            value_bytes=value_bytes,
            seconds=self.effort.seconds if seconds is None else seconds,
            bytes_max=bytes_max,
            linger_ms=LINGER_MS,
        )

    @contextmanager
    def floor(self, shape: Shape = FLOOR_SHAPE, connections: int = 1) -> Iterator[FloorCluster]:
        """Three replicas without anything but bytes, for as long as the block."""
        with scratch() as folder, floor_cluster(folder, shape, connections) as bare:
            yield bare

    def warm(self) -> None:
        with self.topic(4) as topic:
            for contender in self.contenders.values():
                self.produce(contender, topic, partitions=4, producers=2, seconds=WARM_S)


@contextmanager
def open_arena(effort: Effort, nodes: int = NODES) -> Iterator[Arena]:
    """Both started, and warm."""
    with scratch() as folder, ExitStack() as stack:
        paths = {name: os.path.join(folder, name.lower()) for name in (TIDELOG, KAFKA)}
        for path in paths.values():
            os.makedirs(path)
        peer, remarks = None, ["without Apache Kafka, as it was asked for"]
        if effort.kafka:
            try:
                peer, remarks = kafka(paths[KAFKA], nodes), []
            except Unavailable as reason:
                remarks = [f"without Apache Kafka, Tidelog against its floor only: {reason}"]
        ours = stack.enter_context(running(tidelog(paths[TIDELOG], nodes)))
        if peer is not None:
            stack.enter_context(running(peer))
        arena = Arena(ours, peer, load_client(folder), effort, folder, remarks)
        for name, contender in arena.contenders.items():
            contender.settle()
            arena.idle_mb[name] = contender.memory_mb()
        arena.warm()
        yield arena
