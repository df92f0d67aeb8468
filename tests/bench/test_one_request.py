"""Steps that nodes noted, and how long the parts between them took."""

from pathlib import Path

import pytest

from bench.one_request import PARTS, _line, lengths_us
from bench.traced import _WATCHED, _watch, read_steps


def test_a_part_lasts_from_the_last_beginning_to_the_next_end() -> None:
    steps = [(1_000, "turn"), (2_000, "turn"), (5_000, "sending"), (6_000, "sending"), (9_000, "turn"), (9_500, "sent")]
    assert list(lengths_us(steps, "turn", "sending")) == [3.0]
    assert list(lengths_us(steps, "sending", "sent")) == [3.5]
    assert list(lengths_us(steps, "sent", "turn")) == []


def test_a_part_that_nobody_took_has_no_length() -> None:
    assert _line("its disk", []).value == "–"
    assert _line("its disk", [1.0, 2.0, 9.0]).value == "2 µs"


def test_every_part_begins_and_ends_with_steps_that_are_noted() -> None:
    noted = {step for _, _, *steps in _WATCHED for step in steps if step}
    assert {step for part in PARTS for step in (part.begins, part.ends)} <= noted


@pytest.mark.parametrize(("kind", "method"), [watched[:2] for watched in _WATCHED])
def test_what_is_watched_is_there(kind: type, method: str) -> None:
    assert callable(getattr(kind, method))


def test_a_watched_call_is_noted_before_and_behind() -> None:
    class Called:
        def call(self, number: int) -> int:
            assert [step for _, step in steps] == ["before"]
            return number + 1

    steps: list[tuple[int, str]] = []
    _watch(steps, Called, "call", "before", "behind")
    assert Called().call(1) == 2
    assert [step for _, step in steps] == ["before", "behind"]
    assert steps == sorted(steps)


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "node-1.steps"
    path.write_text("12 request\n15 turn\n")
    assert read_steps(str(path)) == [(12, "request"), (15, "turn")]
