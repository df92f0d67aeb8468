"""Whether topics have every command of a source once and in order, and whether a state table is the source's state.

    python -m tests.e2e.pipeline.check --bootstrap B --config source.toml --items F --state F --table FOLDER --outcome F

writes what it found as JSON (`Outcome`) to the last one; the first two are the sample master's (`items`, `state`). A
command that concerns keys of several partitions is in each of them; one whose event is too large is a dead letter.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from tests.pikiwi.live_state import State, differences, read_state, state_from
from tidelog.pikiwi.config import Config, load_config
from tidelog.pikiwi.dump import DumpInfo, plan, read_range
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.position import Position
from tidelog.spark.tables.rows import entries

DEAD_LETTER = ".dead-letter"
ANSWER_S_MAX = 30.0
SHOWN_MAX = 10


class Sent(NamedTuple):
    """An event in a topic."""

    partition: int
    event_id: str
    db: str
    position: Position
    ts_ms: int


class Item(NamedTuple):
    """A command in the source's binlog."""

    position: Position  # its end
    broadcast: bool


@dataclass(frozen=True)
class Delivery:
    """What became of the commands of a binlog, or of a dump."""

    commands: int = 0
    events: int = 0
    dead_letters: int = 0
    lost: int = 0
    duplicated: int = 0
    unknown: int = 0  # events of commands that the source does not have
    disordered: int = 0

    def __add__(self, other: "Delivery") -> "Delivery":
        return Delivery(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def right(self) -> bool:
        return not (self.lost or self.duplicated or self.unknown or self.disordered)


@dataclass(frozen=True)
class Outcome:
    snapshot: Delivery = Delivery()
    binlog: Delivery = Delivery()
    keys: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return self.snapshot.right and self.binlog.right and not self.differences


def check_binlog(items: Sequence[Item], events: Sequence[Sent], letters: Sequence[Sent], partitions: int) -> Delivery:
    """Every command of a database once in its partition, or once in each, or once among the dead letters."""
    wanted = {item.position: partitions if item.broadcast else 1 for item in items}
    found: dict[Position, Counter[int]] = {}
    for event in events:
        found.setdefault(event.position, Counter())[event.partition] += 1
    aside = Counter(event.position for event in letters)
    lost = duplicated = 0
    for position, copies in wanted.items():
        held = found.get(position, Counter())
        lost += not aside[position] and len(held) < copies
        allowed = 1 if aside[position] else copies  # a dead letter has no event besides
        duplicated += max(held.total() + aside[position] - allowed, 0)
    return Delivery(
        commands=len(items),
        events=len(events),
        dead_letters=len(letters),
        lost=lost,
        duplicated=duplicated,
        unknown=len((found.keys() | aside.keys()) - wanted.keys()),
        disordered=_disordered(events),
    )


def _disordered(events: Iterable[Sent]) -> int:
    """Events that stand behind a later one of the same database in their partition."""
    highest: dict[tuple[int, str], Position] = {}
    wrong = 0
    for event in events:
        at = (event.partition, event.db)
        wrong += event.position < highest.get(at, event.position)
        highest[at] = max(event.position, highest.get(at, event.position))
    return wrong


def check_snapshot(commands: Sequence[str], events: Sequence[Sent], letters: Sequence[Sent]) -> Delivery:
    """`commands`: the ids of the events that a dump must give."""
    wanted = set(commands)
    found = Counter(event.event_id for event in [*events, *letters])
    return Delivery(
        commands=len(commands),
        events=len(events),
        dead_letters=len(letters),
        lost=len(wanted - found.keys()),
        duplicated=sum(count - 1 for count in found.values()),
        unknown=len(found.keys() - wanted),
    )


# --- topics -----------------------------------------------------------------------------------------------------------


def read_topic(bootstrap: str, topic: str) -> tuple[list[Sent], int]:
    """All events that a topic has now, partition by partition; and how many partitions it has."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "pipeline-check",
            "enable.auto.commit": False,
            "log_level": 0,
            "fetch.message.max.bytes": 16 << 20,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic]
        if found.error is not None:
            return [], 0
        events: list[Sent] = []
        for partition in sorted(found.partitions):
            events += _read_partition(consumer, topic, partition)
        return events, len(found.partitions)
    finally:
        consumer.close()


def _read_partition(consumer: Consumer, topic: str, partition: int) -> Iterator[Sent]:
    at, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S_MAX)
    consumer.assign([TopicPartition(topic, partition, at)])
    give_up_s = time.monotonic() + ANSWER_S_MAX
    while at < end:
        for message in consumer.consume(1_000, 1.0):
            if message.error() is not None:
                continue
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            at = offset + 1
            give_up_s = time.monotonic() + ANSWER_S_MAX
            yield sent(partition, json.loads(value))
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{topic} [{partition}]: nothing came after offset {at}, and {end} is its end")


def sent(partition: int, event: Mapping[str, Any]) -> Sent:
    _, db, filenum, offset = event["position"].rsplit("/", 3)
    return Sent(partition, event["event_id"], db, Position(int(filenum), int(offset)), event["ts_ms"])


# --- what there should be ---------------------------------------------------------------------------------------------


def read_items(path: Path, after: Mapping[str, Position]) -> dict[str, list[Item]]:
    """The commands behind each database's position, as the sample master wrote them down."""
    items: dict[str, list[Item]] = {}
    with path.open(encoding="ascii") as file:
        for line in file:
            db, filenum, offset, broadcast = json.loads(line)
            position = Position(filenum, offset)
            if position > after.get(db, Position(0, 0)):
                items.setdefault(db, []).append(Item(position, broadcast))
    return items


def snapshot_ids(config: Config, db: str, now_ms: int) -> list[str]:
    """The ids of the events that a dump must give, by the simplest way of building them."""
    builder = EventBuilder(EventSettings(db, config.source))
    ids: list[str] = []
    for each in plan(config.dump_path / db, now_ms=now_ms, batch_num=config.snapshot_batch_num):
        for command in read_range(each):
            event = builder.snapshot_event(command, Position(0, 0), now_ms)
            if event is not None:
                ids.append(json.loads(event.value)["event_id"])
    return ids


def table_state(folder: Path, now_ms: int) -> dict[str, State]:
    """What a state table holds, by database, as any reader of Delta tables sees it."""
    rows = DeltaTable(folder).to_pyarrow_table()
    alive = pc.fill_null(pc.greater_equal(rows["expire_at"], now_ms), True)
    rows = rows.filter(alive)
    return {db: state_from(entries(rows.filter(pc.equal(rows["db"], db)))) for db in pc.unique(rows["db"]).to_pylist()}


def table_differences(state: Path, folder: Path, now_ms: int) -> tuple[int, list[str]]:
    """How many keys the source has, and where the table is not the source's state."""
    master, table = read_state(state), table_state(folder, now_ms)
    told: list[str] = []
    for db in sorted(master.keys() | table.keys()):
        mine = {at: held for at, held in master.get(db, {}).items() if not 0 < held[1] < now_ms}
        told += [f"{db}: {each}" for each in differences(mine, table.get(db, {}))]
    return sum(map(len, master.values())), told[:SHOWN_MAX]


# --- the command ------------------------------------------------------------------------------------------------------


def check_topics(bootstrap: str, config: Config, items_path: Path) -> tuple[Delivery, Delivery]:
    """Of the dump and of the binlog behind it, of all databases together."""
    dumps = {db: DumpInfo.load(config.dump_path / db).position for db in config.databases}
    items = read_items(items_path, dumps)
    snapshot, binlog = (
        (*read_topic(bootstrap, topic), read_topic(bootstrap, topic + DEAD_LETTER)[0])
        for topic in (config.kafka_topic_snapshot, config.kafka_topic_binlog)
    )
    of_dumps, of_binlogs = Delivery(), Delivery()
    for db in config.databases:
        (events, partitions, letters), (dumped, _, dumped_letters) = binlog, snapshot
        of_binlogs += check_binlog(items.get(db, []), _of(db, events), _of(db, letters), partitions)
        mine, mine_aside = _of(db, dumped), _of(db, dumped_letters)
        now_ms = max((event.ts_ms for event in [*mine, *mine_aside]), default=0)
        of_dumps += check_snapshot(snapshot_ids(config, db, now_ms), mine, mine_aside)
    return of_dumps, of_binlogs


def _of(db: str, events: Sequence[Sent]) -> list[Sent]:
    return [event for event in events if event.db == db]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.pipeline.check")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--config", required=True, help="of the source")
    parser.add_argument("--items", type=Path, required=True, help="what the master's binlog has")
    parser.add_argument("--state", type=Path, required=True, help="what the master's keys hold")
    parser.add_argument("--table", type=Path, required=True, help="the state table")
    parser.add_argument("--outcome", type=Path, required=True, help="where what was found goes")
    return parser


def main() -> None:
    options = _parser().parse_args()
    config = load_config(options.config, [], {})
    snapshot, binlog = check_topics(options.bootstrap, config, options.items)
    keys, told = table_differences(options.state, options.table, time.time_ns() // 1_000_000)
    outcome = Outcome(snapshot, binlog, keys, told)
    options.outcome.write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
