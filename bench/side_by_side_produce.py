"""Rows about producing: how fast, and what it costs the nodes."""

import statistics
from collections.abc import Callable
from contextlib import ExitStack, closing

from bench.arena import FLOOR, KIB, MB, Arena, Round
from bench.cluster import Shape
from bench.contenders import KAFKA, TIDELOG, Contender
from bench.figures import Figure
from bench.frames import batch_of
from bench.load_client import Outcome
from bench.raw_client import RawClient, Sent

SYNCED = f"{KAFKA}, flush.messages=1"
MANY_PARTITIONS = 16
MANY_PRODUCERS = 8
NEW_BYTES = 200 * MB  # less than a segment
TAIL_CONSUMERS = 4
TAIL_S_MAX = 40.0
TAIL_RECORDS_MAX = 5_000_000
RAW_WINDOW_BYTES = 5 * MB
RAW_BYTES = 64 * MB  # a round


def rates(rounds: list[Round[Outcome]]) -> list[float]:
    return [one.outcome.mb_per_s for one in rounds]


def cpu_s_per_gb(rounds: list[Round[Outcome]]) -> list[float]:
    return [one.cpu_s / (one.outcome.bytes / 1e9) for one in rounds]


def client_note(arena: Arena, rounds: list[Round[Outcome]]) -> str:
    """What the client itself costs: where it is much, the client is what is measured."""
    used = statistics.median(one.outcome.cpu_s / (one.outcome.bytes / 1e9) for one in rounds)
    return f"{arena.client.name}: {used:.1f} CPU-s a GB itself"


def produce_1k(arena: Arena) -> list[Figure]:
    with ExitStack() as stack:
        topic = stack.enter_context(arena.used_topic())
        actions: dict[str, tuple[Contender | None, Callable[[], Outcome]]] = {
            name: (who, lambda w=who: arena.produce(w, topic)) for name, who in arena.contenders.items()
        }
        if (kafka := arena.kafka) is not None:
            synced = stack.enter_context(arena.used_topic(kafka, flush_messages=1))
            actions[SYNCED] = (kafka, lambda: arena.produce(kafka, synced))
        else:
            bare = stack.enter_context(arena.floor())
            actions[FLOOR] = (None, lambda: _as_outcome(bare.send(), bare.shape.count * len(bare.batch)))
        measured = arena.alternate(actions)
    ours, name = measured[TIDELOG], "produce 1 KiB, acks=all, 1 stream"
    note = client_note(arena, ours)
    if arena.kafka is None:
        return [Figure("produce-1k", name, "MB/s", rates(ours), FLOOR, rates(measured[FLOOR]), note=note)]
    return [
        Figure("produce-1k", name, "MB/s", rates(ours), KAFKA, rates(measured[KAFKA]), ">= 2.5", note),
        Figure("produce-1k", name, "MB/s", rates(ours), SYNCED, rates(measured[SYNCED]), ">= 3"),
        Figure(
            "produce-1k",
            "CPU of all nodes a GB produced",
            "s",
            cpu_s_per_gb(ours),
            KAFKA,
            cpu_s_per_gb(measured[KAFKA]),
            "<= 0.5",
        ),
    ]


def new_stream(arena: Arena) -> list[Figure]:
    """The first records of a stream, while its file grows; a new one for every round."""

    def produce(who: Contender) -> Outcome:
        with arena.topic(only=who) as topic:
            return arena.produce(who, topic, bytes_max=NEW_BYTES)

    measured = arena.each(produce)
    ours, theirs = rates(measured[TIDELOG]), rates(measured.get(KAFKA, []))
    name = f"produce 1 KiB, the first {NEW_BYTES // MB} MB of a new stream"
    return [Figure("new-stream", name, "MB/s", ours, KAFKA if theirs else "", theirs)]


def _as_outcome(sent: Sent, size: int) -> Outcome:
    return Outcome(sent.seconds, len(sent.latencies_s), size)


def produce_many(arena: Arena, value_bytes: int, label: str) -> list[Figure]:
    row = f"produce-16x{label}"
    with arena.topic(MANY_PARTITIONS) as topic:
        measured = arena.each(
            lambda who: arena.produce(
                who, topic, value_bytes=value_bytes, partitions=MANY_PARTITIONS, producers=MANY_PRODUCERS
            )
        )
    ours, theirs = measured[TIDELOG], measured.get(KAFKA, [])
    name = f"produce {label}, {MANY_PARTITIONS} streams, {MANY_PRODUCERS} producers"
    records = statistics.median(one.outcome.records_per_s for one in ours)
    note = f"{records:,.0f} records/s; {client_note(arena, ours)}"
    peer = KAFKA if theirs else ""
    return [
        Figure(row, name, "MB/s", rates(ours), peer, rates(theirs), ">= 2", note),
        Figure(row, f"{name}: CPU of all nodes a GB", "s", cpu_s_per_gb(ours), peer, cpu_s_per_gb(theirs)),
    ]


def raw(arena: Arena, batch_bytes: int, label: str) -> list[Figure]:
    """Ready-made requests over one connection to the leader: the server's own capacity, also beside the floor."""
    window = max(5, min(32, RAW_WINDOW_BYTES // batch_bytes))
    shape = Shape(label, batch_bytes, window, RAW_BYTES // batch_bytes)
    batch = batch_of(batch_bytes)
    size = shape.count * len(batch)
    with ExitStack() as stack:
        topic = stack.enter_context(arena.used_topic())
        bare = stack.enter_context(arena.floor(shape))
        clients: dict[str, RawClient] = {}

        def send(name: str, who: Contender) -> Outcome:
            if name not in clients:
                clients[name] = stack.enter_context(closing(who.connect(who.leader_of(topic))))
            return _as_outcome(clients[name].produce(topic, batch, shape.count, shape.window), size)

        actions: dict[str, tuple[Contender | None, Callable[[], Outcome]]] = {
            name: (who, lambda n=name, w=who: send(n, w)) for name, who in arena.contenders.items()
        }
        actions[FLOOR] = (None, lambda: _as_outcome(bare.send(), size))
        measured = arena.alternate(actions)
    row, name = f"raw-{label}", f"bare sender, {label} batches, {window} in flight"
    ours = rates(measured[TIDELOG])
    figures = [Figure(row, name, "MB/s", ours, FLOOR, rates(measured[FLOOR]), ">= 0.7")]
    if KAFKA in measured:
        figures.insert(0, Figure(row, name, "MB/s", ours, KAFKA, rates(measured[KAFKA]), ">= 4"))
    return figures


def tail(arena: Arena) -> list[Figure]:
    """Produced as fast as it goes, alone and while four consumers read along at the end."""
    with arena.used_topic() as topic:

        def produce_followed(who: Contender) -> Outcome:
            arguments = {"consumers": TAIL_CONSUMERS, "count": TAIL_RECORDS_MAX, "skip": 0, "seconds": TAIL_S_MAX}
            with arena.client.started("follow", bootstrap=who.bootstrap, topic=topic, **arguments) as followers:
                outcome = arena.produce(who, topic)
                followers.terminate()
                followers.last_words()
            return outcome

        actions: dict[str, tuple[Contender | None, Callable[[], Outcome]]] = {
            name: (who, lambda w=who: produce_followed(w)) for name, who in arena.contenders.items()
        }
        alone = f"{TIDELOG} without consumers"
        actions[alone] = (arena.tidelog, lambda: arena.produce(arena.tidelog, topic))
        measured = arena.alternate(actions)
    ours = rates(measured[TIDELOG])
    name = f"produce 1 KiB while {TAIL_CONSUMERS} consumers follow"
    figures = [Figure("tail-4", name, "MB/s", ours, alone, rates(measured[alone]), ">= 0.9")]
    if KAFKA in measured:
        figures.append(Figure("tail-4", name, "MB/s", ours, KAFKA, rates(measured[KAFKA]), ">= 2"))
    return figures


def memory(arena: Arena) -> list[Figure]:
    """Of the largest node: before it did anything, and the most it ever had, under load on many streams at the end."""
    with arena.topic(MANY_PARTITIONS) as topic:
        arena.each(
            lambda who: arena.produce(who, topic, partitions=MANY_PARTITIONS, producers=MANY_PRODUCERS),
        )
    loaded = {name: who.memory_mb("VmHWM") for name, who in arena.contenders.items()}
    peer = KAFKA if arena.kafka else ""
    return [
        Figure(
            "memory",
            f"memory of the largest node, {name}",
            "MB",
            [used[TIDELOG]],
            peer,
            [used[KAFKA]] if peer else (),
            "<= 0.4",
        )
        for name, used in (("idle", arena.idle_mb), ("the most under load", loaded))
    ]


RAW_SIZES = {"64k": 64 * KIB, "1m": MB}
VALUE_SIZES = {"100b": 100, "1k": KIB, "10k": 10 * KIB}
