"""The checker says what is wrong with a delivery: it would be worth nothing if it could not."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.pipeline.check import Delivery, Item, Sent, check_binlog, check_snapshot, read_items, sent
from tidelog.pikiwi.position import Position

PARTITIONS = 3


def at(number: int) -> Position:
    return Position(0, number)


def event(number: int, partition: int = 0, db: str = "db0") -> Sent:
    return Sent(partition, f"0:0:{number}", db, at(number), 0)


ITEMS = [Item(at(1), broadcast=False), Item(at(2), broadcast=True), Item(at(3), broadcast=False)]
GOOD = [event(1), event(2), event(3), event(2, 1), event(2, 2)]


def checked(events: Sequence[Sent], letters: Sequence[Sent] = ()) -> Delivery:
    return check_binlog(ITEMS, events, letters, PARTITIONS)


def test_a_good_delivery_is_right() -> None:
    assert checked(GOOD) == Delivery(commands=3, events=5)
    assert checked(GOOD).right


def test_a_dead_letter_stands_for_its_event() -> None:
    assert checked(GOOD[1:], [event(1)]) == Delivery(commands=3, events=4, dead_letters=1)


@pytest.mark.parametrize(
    ("events", "letters", "wrong"),
    [
        (GOOD[1:], [], {"lost": 1}),
        (GOOD[:-1], [], {"lost": 1}),  # one partition lacks what concerns all
        ([*GOOD[:3], event(3), *GOOD[3:]], [], {"duplicated": 1}),
        ([*GOOD, event(3, 2)], [], {"duplicated": 1}),
        (GOOD, [event(1)], {"duplicated": 1}),
        (GOOD[1:], [event(1), event(1)], {"duplicated": 1}),
        ([*GOOD[:3], event(4), *GOOD[3:]], [], {"unknown": 1}),
        ([event(1), event(3), event(2), event(2, 1), event(2, 2)], [], {"disordered": 1}),
    ],
)
def test_what_is_wrong_is_counted(events: list[Sent], letters: list[Sent], wrong: dict[str, int]) -> None:
    found = checked(events, letters)
    assert not found.right
    assert found == Delivery(commands=3, events=len(events), dead_letters=len(letters), **wrong)


def test_positions_of_two_databases_are_not_compared() -> None:
    events = [event(3), event(1, db="db1")]
    assert check_binlog([ITEMS[2]], events[:1], [], 1).disordered == 0
    assert check_binlog([], events, [], 1).disordered == 0


def test_snapshots_are_checked_by_their_ids() -> None:
    ids = [f"0:0:{number}" for number in (1, 2, 3)]
    assert check_snapshot(ids, GOOD[:2], [event(3)]) == Delivery(commands=3, events=2, dead_letters=1)
    assert check_snapshot(ids, GOOD[:2], []).lost == 1
    assert check_snapshot(ids, GOOD[:4], []).duplicated == 1
    assert check_snapshot(ids[:2], GOOD[:3], []).unknown == 1


def test_deliveries_of_several_databases_add_up() -> None:
    assert Delivery(1, 2, 3, 4, 5, 6, 7) + Delivery(1, 1, 1, 1, 1, 1, 1) == Delivery(2, 3, 4, 5, 6, 7, 8)


def test_items_behind_the_dump_are_the_ones_that_count(tmp_path: Path) -> None:
    path = tmp_path / "items"
    path.write_text('["db0", 0, 10, false]\n["db0", 0, 20, true]\n["db1", 0, 10, false]\n')
    assert read_items(path, {"db0": Position(0, 10)}) == {
        "db0": [Item(Position(0, 20), broadcast=True)],
        "db1": [Item(Position(0, 10), broadcast=False)],
    }


def test_an_event_tells_where_it_comes_from() -> None:
    content = {"position": "a/lineage/db3/7/4711", "event_id": "x", "ts_ms": 5}
    assert sent(2, content) == Sent(2, "x", "db3", Position(7, 4711), 5)
