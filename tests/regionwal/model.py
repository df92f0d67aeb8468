"""What a region must be, as plainly as it can be said: for each table its payloads, and how many of them are deleted.

`step` does the same thing to a model and to a real WAL. Steps are data, so that a process that will be killed and the
test that judges what it left behind walk through the same ones.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidelog.regionwal import DROPPED, Entry, RegionWal

Content = Mapping[int, list[tuple[int, bytes]]]  # sequence and payload of each live entry, by table


@dataclass
class TableModel:
    payloads: list[bytes] = field(default_factory=list)  # of sequence 1, 2, …
    deleted: int = 0  # the first so many may not be read any more
    saved: int = 0  # as many at least, for a snapshot says so: a mark that is in none may be forgotten by a crash

    @property
    def last(self) -> int:
        return len(self.payloads)

    @property
    def live(self) -> list[tuple[int, bytes]]:
        return list(enumerate(self.payloads, 1))[self.deleted :]


@dataclass
class RegionModel:
    tables: dict[int, TableModel] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)  # table and sequence, as they were written

    def table(self, number: int) -> TableModel:
        return self.tables.setdefault(number, TableModel())

    def write(self, table: int, payloads: Iterable[bytes]) -> int:
        held = self.table(table)
        for payload in payloads:
            held.payloads.append(payload)
            self.order.append((table, held.last))
        return held.last

    def mark(self, table: int, up_to: int) -> None:
        held = self.table(table)
        held.deleted = max(held.deleted, held.last if up_to == DROPPED else up_to)
        if up_to == DROPPED:
            self.save()

    def save(self) -> None:
        """A snapshot is written."""
        for table in self.tables.values():
            table.saved = table.deleted

    def recover(self, deleted: Mapping[int, int]) -> bool:
        """After a crash so many entries of each table count as deleted. False when that cannot be: only what was
        marked may be, and what was saved must be."""
        for number, table in self.tables.items():
            if not table.saved <= deleted.get(number, 0) <= table.deleted:
                return False
            table.deleted = table.saved = deleted.get(number, 0)
        return True

    @property
    def content(self) -> Content:
        return {number: table.live for number, table in self.tables.items() if table.live}

    @property
    def scanned(self) -> list[tuple[int, int, bytes]]:
        """What a scan must give."""
        return [
            (table, sequence, self.tables[table].payloads[sequence - 1])
            for table, sequence in self.order
            if sequence > self.tables[table].deleted
        ]


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    writes: Mapping[int, Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Mark:
    table: int
    up_to: int


@dataclass(frozen=True, slots=True)
class Clean:
    pass


@dataclass(frozen=True, slots=True)
class Reopen:
    pass


Step = Write | Mark | Clean | Reopen


def do_to_model(model: RegionModel, step: Step) -> None:
    match step:
        case Write(writes):
            for table, payloads in writes.items():
                model.write(table, payloads)
        case Mark(table, up_to):
            model.mark(table, up_to)
        case Clean() | Reopen():
            model.save()


def do_to_wal(wal: RegionWal, region: int, step: Step) -> None:
    match step:
        case Write(writes) if len(writes) == 1:
            [(table, payloads)] = writes.items()
            wal.write(region, table, payloads)
        case Write(writes):
            wal.write_batch(region, writes)
        case Mark(table, up_to):
            wal.mark_delete(region, table, up_to)
        case Clean():
            wal.clean_region(region)
        case Reopen():
            wal.close_region(region)
            wal.open_region(region)


def random_steps(
    seed: int, count: int, *, model: RegionModel | None = None, tables: int = 4, big_bytes: int = 3_000
) -> list[Step]:
    """Mostly writes; every kind of step is among the first ten, and again and again after them.

    They start from `model`, which has gone through them afterwards.
    """
    chance, model, steps = random.Random(seed), RegionModel() if model is None else model, list[Step]()
    kinds = ["write", "write", "batch", "write", "mark", "clean", "big", "write", "drop", "reopen"]
    for number in range(count):
        if number >= len(kinds) and number % len(kinds) == 0:
            chance.shuffle(kinds)
        step = _random_step(chance, kinds[number % len(kinds)], model, tables, big_bytes)
        steps.append(step)
        do_to_model(model, step)
    return steps


def _random_step(chance: random.Random, kind: str, model: RegionModel, tables: int, big_bytes: int) -> Step:
    table = chance.randrange(tables)
    match kind:
        case "write":
            return Write({table: _payloads(chance, table, chance.randint(1, 5), 8)})
        case "big":  # larger than a message may be: it is split
            return Write({table: _payloads(chance, table, 2, big_bytes)})
        case "batch":
            return Write({each: _payloads(chance, each, chance.randint(1, 3), 8) for each in range(tables)})
        case "mark":
            written = [number for number, held in model.tables.items() if held.last]
            table = chance.choice(written)
            held = model.tables[table]
            return Mark(table, chance.randint(held.deleted, held.last))
        case "drop":
            return Mark(chance.choice(list(model.tables)), DROPPED)
        case "clean":
            return Clean()
        case _:
            return Reopen()


def _payloads(chance: random.Random, table: int, count: int, size: int) -> list[bytes]:
    return [b"%d:" % table + chance.randbytes(size) for _ in range(count)]


# --- judging ----------------------------------------------------------------------------------------------------------


def deleted_in(wal: RegionWal, region: int) -> dict[int, int]:
    """How many entries of each table the WAL takes for deleted."""
    [shown] = wal.statistics(region).regions
    return {table.table_id: table.marked_deleted - 1 for table in shown.tables}


def content_of(entries: Iterable[Entry]) -> Content:
    found: dict[int, list[tuple[int, bytes]]] = {}
    for entry in entries:
        found.setdefault(entry.table_id, []).append((entry.sequence, bytes(entry.payload)))
    return found


def possible_after(model: RegionModel, pending: Step | None) -> list[RegionModel]:
    """What may be there when `pending` was begun and never answered: all of it, none of it, or the first part of a
    write, for a write of many entries is many records."""
    outcomes = [model]
    match pending:
        case Write(writes):
            cut = model
            for table, payloads in writes.items():
                for payload in payloads:
                    cut = _copy(cut)
                    cut.write(table, [payload])
                    outcomes.append(cut)
        case Mark():
            marked = _copy(model)
            do_to_model(marked, pending)
            for number, table in model.tables.items():
                marked.tables[number].saved = table.saved
            return [marked]  # the mark may be forgotten, as any that is in no snapshot
    return outcomes


def _copy(model: RegionModel) -> RegionModel:
    return RegionModel(
        {number: replace(table, payloads=list(table.payloads)) for number, table in model.tables.items()},
        list(model.order),
    )
