"""Sequence number → offset as runs: the same answers as a dictionary, in a fraction of its memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.regionwal import SequenceMap
from tidelog.regionwal.sequence_map import Run

CONTIGUOUS = 1_000_000
MEMORY_BYTES_MAX = 1_000_000


def filled(*appends: tuple[int, int, int, int, int]) -> SequenceMap:
    made = SequenceMap()
    for sequence, offset, count, stride, width in appends:
        made.append(sequence, offset, count, stride, width)
    return made


def test_million_contiguous_sequences_take_less_than_a_megabyte() -> None:
    one_by_one, in_batches = SequenceMap(), SequenceMap()
    for sequence in range(1, CONTIGUOUS + 1):
        one_by_one.append(sequence, 5 + sequence)
    for start in range(1, CONTIGUOUS + 1, 500):
        in_batches.append(start, 5 + 2 * start, 500)  # another table's batch lies between two of ours

    assert len(one_by_one) == len(in_batches) == CONTIGUOUS
    assert one_by_one.run_count == 1
    assert one_by_one.memory_bytes < 100
    assert in_batches.memory_bytes < MEMORY_BYTES_MAX
    assert in_batches.get(500_000) == 5 + 2 * 499_501 + 499


def test_tables_that_take_turns_make_one_run_each() -> None:
    of_one_table = SequenceMap((sequence, 1000 * sequence) for sequence in range(1, 10_001))

    assert of_one_table.run_count == 1
    assert of_one_table.get(7_777) == 7_777_000


def test_two_sequences_may_share_an_offset_as_in_the_specifications_example() -> None:
    example = SequenceMap([(2, 16), (3, 16), (4, 31)])

    assert list(example.items()) == [(2, 16), (3, 16), (4, 31)]
    assert (example.get(3), example.get(5)) == (16, None)


def test_split_entries_take_several_records_each() -> None:
    made = filled((1, 10, 1, 1, 1), (2, 11, 2, 3, 3), (4, 17, 1, 1, 1))

    assert list(made.items()) == [(1, 10), (2, 11), (3, 14), (4, 17)]
    assert [run.end_offset for run in made.runs()] == [11, 17, 18]


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0, None, [Run(1, 10, 3, 1, 1), Run(4, 50, 4, 1, 1)]),
        (2, 3, [Run(2, 11, 1, 1, 1)]),
        (3, 6, [Run(3, 12, 1, 1, 1), Run(4, 50, 2, 1, 1)]),
        (4, 100, [Run(4, 50, 4, 1, 1)]),
        (7, 8, [Run(7, 53, 1, 1, 1)]),
        (8, 9, []),
        (5, 5, []),
        (0, 1, []),
    ],
)
def test_runs_are_cut_to_what_is_asked(first: int, end: int | None, expected: list[Run]) -> None:
    made = filled((1, 10, 3, 1, 1), (4, 50, 4, 1, 1))

    assert list(made.runs(first, end)) == expected


def test_hole_in_the_numbers_is_refused() -> None:
    with pytest.raises(AssertionError, match="does not follow"):
        SequenceMap([(1, 10), (3, 11)])


def test_offset_that_goes_back_is_refused() -> None:
    with pytest.raises(AssertionError, match="lies before"):
        SequenceMap([(1, 10), (2, 9)])


def test_equal_is_what_has_the_same_entries_however_it_came_about() -> None:
    at_once, one_by_one = filled((1, 5, 3, 1, 1)), SequenceMap([(1, 5), (2, 6), (3, 7)])

    assert at_once == one_by_one
    assert at_once != SequenceMap([(1, 5), (2, 6), (3, 8)])
    assert at_once != SequenceMap([(1, 5), (2, 6)])


batches = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 5), st.integers(1, 3)),  # gap before it, entries, records of each
    max_size=30,
)


def build(appends: list[tuple[int, int, int]], first: int) -> tuple[SequenceMap, dict[int, int]]:
    made, model = SequenceMap(), {}
    sequence, offset = first, 0
    for gap, count, width in appends:
        offset += gap
        made.append(sequence, offset, count, width, width)
        for _ in range(count):
            model[sequence] = offset
            sequence, offset = sequence + 1, offset + width
    return made, model


@given(batches, st.integers(1, 10), st.integers(0, 200), st.integers(0, 200))
def test_map_is_the_same_as_a_dictionary_whatever_is_dropped(
    appends: list[tuple[int, int, int]], first: int, low: int, high: int
) -> None:
    made, model = build(appends, first)
    before = made.copy()

    made.drop_below(low)
    made.drop_from(high)

    expected = {sequence: offset for sequence, offset in model.items() if low <= sequence < high}
    assert dict(made.items()) == expected
    assert len(made) == len(expected)
    assert (made.first, made.end) == ((min(expected), max(expected) + 1) if expected else (None, 0))
    assert made.first_offset == (expected[min(expected)] if expected else None)
    assert [made.get(sequence) for sequence in range(250)] == [expected.get(sequence) for sequence in range(250)]
    assert dict(before.items()) == model


@given(batches, st.integers(1, 100), st.integers(1, 100))
def test_map_goes_on_after_something_was_dropped(appends: list[tuple[int, int, int]], low: int, more: int) -> None:
    made, model = build(appends, 1)
    end, offset = max(model, default=0) + 1, max(model.values(), default=0) + 10
    made.drop_below(low)

    made.append(end, offset, more)

    expected = {sequence: place for sequence, place in model.items() if sequence >= low}
    expected |= {end + index: offset + index for index in range(more)}
    assert dict(made.items()) == expected
