"""Each rule of the checker catches its violation, and a history in which all went well breaks none."""

import dataclasses
from collections.abc import Callable

import pytest

from .checker import RULES, check
from .history import Asked, Committed, FinalRead, History, Pipelined, Polled, Produced

Change = Callable[[History], None]


def good_history() -> History:
    """Two producers, one of them idempotent, one partition; record b:2 failed and is in the log all the same."""
    history = History(idempotent={"a"})
    for number, (client, count, offset) in enumerate([("a", 1, 0), ("b", 1, 1), ("a", 2, 2), ("b", 2, None)]):
        item = Produced(client, count, 0, number, number + 0.5, offset, "" if offset is not None else "timed out")
        history.produced.append(item)
        history.sent[item.value] = (0, item.sent_s)
    records = [(0, "a:1"), (1, "b:1"), (2, "a:2"), (3, "b:2")]
    history.polled += [Polled("reader", 0, 0, records[:2]), Polled("reader", 0, 0, records[2:])]
    history.asked += [Asked("w", 0, 0.6, 0.7, 0, 1), Asked("w", 0, 2.6, 2.7, 0, 3), Asked("v", 0, 4, 5, None, 4)]
    history.pipelined.append(Pipelined("b", 0, 1, [1, None]))
    history.final.append(FinalRead(0, 0, 4, records))
    return history


def test_history_in_which_all_went_well_breaks_no_rule() -> None:
    assert check(good_history()) == []


def test_empty_history_breaks_no_rule() -> None:
    assert check(History()) == []


def _reread(history: History, *records: tuple[int, str], earliest: int = 0, latest: int | None = None) -> None:
    end = len(records) if latest is None else latest
    history.final[:] = [FinalRead(0, earliest, end, records)]


def _acknowledged_record_is_gone(history: History) -> None:
    history.polled.clear()
    _reread(history, (0, "a:1"), (1, "b:1"))


def _acknowledged_record_is_elsewhere(history: History) -> None:
    history.polled.clear()
    _reread(history, (0, "a:1"), (1, "b:2"), (2, "b:1"), (3, "a:2"))


def _record_that_was_read_is_gone(history: History) -> None:
    _reread(history, (0, "a:1"), (1, "b:1"), (2, "a:2"))


def _reader_saw_another_value(history: History) -> None:
    history.polled.append(Polled("other", 0, 0, [(3, "b:1")]))


def _one_offset_acknowledged_twice(history: History) -> None:
    history.produced[2] = dataclasses.replace(history.produced[2], offset=1)


def _idempotent_record_is_there_twice(history: History) -> None:
    _reread(history, (0, "a:1"), (1, "b:1"), (2, "a:2"), (3, "b:2"), (4, "a:2"))


def _idempotent_record_overtook_another(history: History) -> None:
    history.produced[0] = dataclasses.replace(history.produced[0], offset=2)
    history.produced[2] = dataclasses.replace(history.produced[2], offset=0)


def _unacknowledged_idempotent_record_overtook_another(history: History) -> None:
    history.sent["a:3"] = (0, 9)
    history.produced.append(Produced("a", 3, 0, 9, 9, None, "timed out"))
    _reread(history, (0, "a:1"), (1, "b:1"), (2, "a:3"), (3, "a:2"))


def _record_that_nobody_sent(history: History) -> None:
    history.polled.append(Polled("other", 0, 0, [(4, "c:1")]))


def _record_in_the_wrong_partition(history: History) -> None:
    history.polled.append(Polled("other", 0, 1, [(0, "a:1")]))


def _poll_skips_a_record(history: History) -> None:
    history.polled[1] = Polled("reader", 0, 0, [(3, "b:2")])


def _poll_goes_back(history: History) -> None:
    history.polled.append(Polled("reader", 0, 0, [(2, "a:2")]))


def _group_skips_a_record(history: History) -> None:
    history.groups.update({"m1": "g", "m2": "g"})
    history.polled += [Polled("m1", 1, 0, [(0, "a:1")]), Polled("m2", 1, 0, [(2, "a:2")])]


def _group_begins_before_what_it_committed(history: History) -> None:
    history.groups.update({"m1": "g", "m2": "g"})
    history.sessions.update({("m1", 1): 1.0, ("m2", 1): 3.0})
    history.committed.append(Committed("m1", 0, 2.0, 2))
    records = [(0, "a:1"), (1, "b:1")]
    history.polled += [Polled("m1", 1, 0, records), Polled("m2", 1, 0, records[1:])]


def _final_read_ends_early(history: History) -> None:
    _reread(history, (0, "a:1"), (1, "b:1"), (2, "a:2"), (3, "b:2"), latest=5)


def _final_read_has_a_hole(history: History) -> None:
    _reread(history, (0, "a:1"), (1, "b:1"), (3, "b:2"), latest=4)


def _latest_falls_for_one_client(history: History) -> None:
    history.asked.append(Asked("w", 0, 6, 7, 0, 3))


def _latest_falls_from_one_client_to_the_next(history: History) -> None:
    history.asked.append(Asked("u", 0, 6, 7, 0, 3))


def _earliest_falls(history: History) -> None:
    history.asked += [Asked("w", 0, 6, 7, 2, 4), Asked("w", 0, 8, 9, 1, 4)]
    history.final.clear()


def _earliest_is_above_latest(history: History) -> None:
    history.asked.append(Asked("w", 0, 6, 7, 5, 4))
    history.final.clear()


def _latest_does_not_know_of_an_acknowledged_record(history: History) -> None:
    history.asked[1] = Asked("w", 0, 2.6, 2.7, 0, 2)


def _record_without_an_end(history: History) -> None:
    history.sent["a:9"] = (0, 9)


def _producer_that_cannot_go_on(history: History) -> None:
    history.fatal.append(("a", "OUT_OF_ORDER_SEQUENCE_NUMBER"))


def _acknowledged_after_a_failure(history: History) -> None:
    history.pipelined[0] = Pipelined("b", 0, 1, [None, 3])


def _in_the_log_without_the_one_before(history: History) -> None:
    history.sent["b:0"] = (0, 0)
    history.produced.append(Produced("b", 0, 0, 0, 0, None, "refused"))
    history.pipelined[0] = Pipelined("b", 0, 0, [None, None, None])


def _in_the_log_before_the_one_before(history: History) -> None:
    history.polled.clear()
    _reread(history, (0, "a:1"), (1, "b:2"), (2, "a:2"), (3, "b:1"))


VIOLATIONS: list[tuple[str, Change]] = [
    ("lost", _acknowledged_record_is_gone),
    ("lost", _acknowledged_record_is_elsewhere),
    ("vanished", _record_that_was_read_is_gone),
    ("conflict", _reader_saw_another_value),
    ("conflict", _one_offset_acknowledged_twice),
    ("duplicate", _idempotent_record_is_there_twice),
    ("disorder", _idempotent_record_overtook_another),
    ("disorder", _unacknowledged_idempotent_record_overtook_another),
    ("phantom", _record_that_nobody_sent),
    ("phantom", _record_in_the_wrong_partition),
    ("gap", _poll_skips_a_record),
    ("gap", _poll_goes_back),
    ("skipped", _group_skips_a_record),
    ("forgotten", _group_begins_before_what_it_committed),
    ("incomplete", _final_read_ends_early),
    ("incomplete", _final_read_has_a_hole),
    ("backwards", _latest_falls_for_one_client),
    ("backwards", _latest_falls_from_one_client_to_the_next),
    ("backwards", _earliest_falls),
    ("backwards", _earliest_is_above_latest),
    ("stale", _latest_does_not_know_of_an_acknowledged_record),
    ("unanswered", _record_without_an_end),
    ("fatal", _producer_that_cannot_go_on),
    ("promise-5", _acknowledged_after_a_failure),
    ("promise-5", _in_the_log_without_the_one_before),
    ("promise-5", _in_the_log_before_the_one_before),
]


@pytest.mark.parametrize(("rule", "change"), VIOLATIONS, ids=lambda item: getattr(item, "__name__", item))
def test_rule_catches_its_violation(rule: str, change: Change) -> None:
    history = good_history()
    change(history)

    assert rule in {violation.rule for violation in check(history)}


def test_every_rule_has_a_violation_here() -> None:
    assert {rule for rule, _ in VIOLATIONS} == set(RULES)


def test_many_violations_of_one_rule_are_counted_and_not_all_shown() -> None:
    history = good_history()
    for number in range(100):
        history.sent[f"a:{100 + number}"] = (0, 9)

    found = check(history)

    assert len(found) == 6
    assert "100 in all" in found[-1].text


def test_concurrent_watermarks_may_be_seen_in_any_order() -> None:
    history = good_history()
    history.asked += [Asked("u", 0, 2.4, 9, 0, 2)]  # asked before a:2 was acknowledged, answered long after

    assert check(history) == []


def test_records_before_the_log_start_are_not_missed() -> None:
    history = good_history()
    _reread(history, (2, "a:2"), (3, "b:2"), earliest=2, latest=4)

    assert check(history) == []


def test_what_a_group_committed_last_counts_though_it_is_less() -> None:
    history = good_history()
    _group_begins_before_what_it_committed(history)
    history.committed.append(Committed("m1", 0, 2.5, 1))

    assert check(history) == []


def test_group_may_read_a_record_twice_and_begin_late() -> None:
    history = good_history()
    history.groups.update({"m1": "g", "m2": "g"})
    history.sessions.update({("m1", 1): 1.0, ("m2", 1): 3.0})
    history.committed += [Committed("m1", 0, 2.0, 2), Committed("m1", 0, 3.5, 3)]  # the second while m2 begins
    history.polled += [Polled("m1", 1, 0, [(1, "b:1"), (2, "a:2")]), Polled("m2", 1, 0, [(2, "a:2"), (3, "b:2")])]

    assert check(history) == []


def test_longest_gap_is_between_acknowledgements() -> None:
    assert good_history().longest_gap_ms(0.0, 5.0) == 2500
