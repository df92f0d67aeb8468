"""What a follower does with its leader's entries: compare, keep, truncate, acknowledge, commit."""

import pytest

from tests.raft.harness import GROUP
from tests.raft.lone import Lone, append, every, heartbeat, only
from tests.raft.memory_log import MemoryLog, log_of_terms
from tidelog.raft import (
    AppendRejected,
    AppendResponse,
    Configuration,
    Entry,
    EntryKind,
    HeartbeatResponse,
    RaftInvariantError,
    TakeOver,
)


def terms(node: Lone) -> list[int]:
    return [entry.term for entry in node.log.stored]


def take_over(term: int, index: int, log_term: int, *, context: bytes = b"next offset 70") -> TakeOver:
    return TakeOver(GROUP, 2, 1, term, index, log_term, index, Configuration.of([1, 2, 3, 4]), context, 0)


# Comparing


def test_entries_that_follow_are_appended_and_acknowledged() -> None:
    node = Lone(log_of_terms(1, 1))
    answers = every(AppendResponse, node.hear(append(2, (2, 1), 1, 2)))
    assert [answer.match for answer in answers] == [2, 4], "what is durable already, then the rest when it is"
    assert terms(node) == [1, 1, 1, 2]


def test_append_whose_previous_entry_is_missing_is_rejected() -> None:
    node = Lone(log_of_terms(1, 1))
    rejected = only(AppendRejected, node.hear(append(2, (5, 2), 2)))
    assert (rejected.previous_index, rejected.hint_index, rejected.hint_term) == (5, 2, 1)
    assert terms(node) == [1, 1]


def test_append_whose_previous_entry_is_of_another_term_is_rejected() -> None:
    node = Lone(log_of_terms(1, 2, 2))
    rejected = only(AppendRejected, node.hear(append(4, (3, 3), 4)))
    assert (rejected.previous_index, rejected.hint_index, rejected.hint_term) == (3, 3, 2)
    assert terms(node) == [1, 2, 2], "a mismatch before the entries truncates nothing yet"


def test_rejection_points_before_everything_that_cannot_match() -> None:
    node = Lone(log_of_terms(1, 1, 4, 4, 4, 4))
    rejected = only(AppendRejected, node.hear(append(5, (6, 3), 5)))
    assert (rejected.hint_index, rejected.hint_term) == (2, 1)


def test_conflicting_suffix_is_replaced_from_the_first_entry_that_differs() -> None:
    node = Lone(log_of_terms(1, 1, 2, 2, 2))
    assert every(AppendResponse, node.hear(append(3, (1, 1), 1, 3)))[-1].match == 3
    assert terms(node) == [1, 1, 3]


def test_matching_entries_are_kept_with_what_follows_them() -> None:
    node = Lone(log_of_terms(1, 1, 1, 1, 1))
    before = list(node.log.stored)
    answer = only(AppendResponse, node.hear(append(2, (1, 1), 1, 1)))
    assert node.log.stored == before, "a shorter append is no reason to truncate"
    assert answer.match == 3, "and what follows it is not verified"


def test_append_repeated_or_out_of_order_never_truncates() -> None:
    node = Lone(log_of_terms(1))
    first, second, third = append(2, (1, 1), 2), append(2, (2, 2), 2), append(2, (3, 2), 2)
    node.hear(first, second, third)
    for late in (second, first, third, first):
        node.hear(late)
        assert terms(node) == [1, 2, 2, 2]


def test_truncation_at_or_below_the_commit_index_is_fatal() -> None:
    node = Lone(log_of_terms(1, 1, 1))
    node.hear(append(2, (3, 1), 2, commit=4))
    assert node.group.commit == 4
    with pytest.raises(RaftInvariantError, match="would undo entries committed"):
        node.group._replica.truncate_from(4)
    assert node.log.last_index == 4
    node.group._replica.log.append_received([Entry(5, 2, EntryKind.DATA, b"")])
    node.group._replica.truncate_from(5)


def test_old_news_about_committed_entries_changes_nothing_even_from_before_the_logs_first_entry() -> None:
    node = Lone(log_of_terms(1, 1, 1, 1))
    node.hear(append(2, (4, 1), 2, commit=5))
    node.log.delete_before(5, b"")
    answer = only(AppendResponse, node.hear(append(2, (1, 1), 1, 1, 1, 2, 2)))
    assert answer.match == 6
    assert terms(node) == [2, 2]


# Acknowledging


def test_acknowledgement_waits_for_the_disk_and_covers_all_appends_since() -> None:
    node = Lone(log_of_terms(1))
    node.hear(append(2, (1, 1)))
    node.disk_works = False
    assert not node.hear(append(2, (1, 1), 2), append(2, (2, 2), 2), append(2, (3, 2), 2))
    node.log.sync(3)
    node.group.written(node.now_ms)
    assert only(AppendResponse, node.take()).match == 3
    assert not node.take()
    node.log.sync()
    node.group.written(node.now_ms)
    assert only(AppendResponse, node.take()).match == 4
    assert not node.take()


def test_what_is_durable_but_not_verified_against_this_leader_is_not_acknowledged() -> None:
    node = Lone(log_of_terms(1, 1, 1, 1))
    assert only(AppendResponse, node.hear(append(2, (2, 1)))).match == 2
    answer = only(HeartbeatResponse, node.hear(heartbeat(2)))
    assert (answer.match, answer.verified) == (2, 2)


def test_what_was_verified_against_an_earlier_leader_is_not_verified_against_this_one() -> None:
    node = Lone(log_of_terms(1))
    node.hear(append(2, (1, 1), 2, 2))
    answer = only(HeartbeatResponse, node.hear(heartbeat(3, source=3)))
    assert (answer.match, answer.verified) == (0, 0)
    assert only(AppendResponse, node.hear(append(3, (1, 1), source=3))).match == 1


def test_repeated_append_is_acknowledged_again_as_the_answer_may_have_been_lost() -> None:
    node = Lone(log_of_terms(1))
    for _ in range(2):
        assert every(AppendResponse, node.hear(append(2, (1, 1), 2)))[-1].match == 2


def test_heartbeat_is_answered_at_once_whatever_the_disk_does() -> None:
    node = Lone(log_of_terms(1))
    node.hear(append(1, (1, 1)))
    node.disk_works = False
    node.hear(append(1, (1, 1), 1))
    answer = only(HeartbeatResponse, node.hear(heartbeat(1, round_=5)))
    assert (answer.match, answer.verified, answer.round) == (1, 2, 5)


def test_answers_echo_the_newest_round() -> None:
    node = Lone()
    assert only(AppendResponse, node.hear(append(1, (0, 0), 1, round_=9))).round == 9
    assert only(AppendResponse, node.hear(append(1, (1, 1), 1, round_=3))).round == 9
    assert only(AppendRejected, node.hear(append(1, (5, 1), round_=4))).round == 9


# Committing


def test_follower_commits_no_further_than_it_has_verified() -> None:
    node = Lone(log_of_terms(1, 1, 1, 1))
    node.hear(append(2, (2, 1), commit=4))
    assert node.group.commit == 2, "entries 3 and 4 may not be the leader's"
    node.hear(heartbeat(2, commit=4))
    assert node.group.commit == 2
    node.hear(append(2, (2, 1), 2, commit=3))
    assert node.group.commit == 3


def test_heartbeat_of_a_new_leader_commits_nothing_that_was_only_verified_against_the_old_one() -> None:
    node = Lone(log_of_terms(1))
    node.hear(append(2, (1, 1), 2, 2))
    node.hear(heartbeat(3, commit=3, source=3))
    assert node.group.commit == 0


def test_commit_never_falls() -> None:
    node = Lone()
    node.hear(append(1, (0, 0), 1, 1, commit=2))
    node.hear(append(1, (2, 1), 1, commit=1), heartbeat(1, commit=0))
    assert node.group.commit == 2


def test_follower_commits_what_others_have_durable_before_its_own_disk_has_it() -> None:
    node = Lone()
    node.hear(heartbeat(1))
    node.disk_works = False
    node.hear(append(1, (0, 0), 1, commit=1))
    assert (node.group.commit, node.log.durable_index) == (1, 0)
    assert node.effects.commit == 1


# A full disk


def test_follower_with_a_full_disk_keeps_what_it_has_and_says_so() -> None:
    node = Lone(log_of_terms(1, 1))
    node.log.accepting = False
    answer = only(AppendResponse, node.hear(append(2, (1, 1), 1, 2, 2, commit=3)))
    assert (answer.match, answer.accepting) == (2, False)
    assert (terms(node), node.group.commit) == ([1, 1], 2)
    assert not only(HeartbeatResponse, node.hear(heartbeat(2))).accepting
    node.log.accepting = True
    answer = only(AppendResponse, node.hear(append(2, (2, 1), 2, 2)))
    assert (answer.match, answer.accepting) == (4, True)


def test_follower_with_a_full_disk_does_not_truncate_for_entries_it_cannot_take() -> None:
    node = Lone(log_of_terms(1, 1, 2, 2))
    node.log.accepting = False
    answer = only(AppendResponse, node.hear(append(3, (1, 1), 1, 3)))
    assert (answer.match, terms(node)) == (2, [1, 1, 2, 2])


# Take-over


def test_take_over_replaces_the_log_and_is_acknowledged_when_durable() -> None:
    node = Lone(log_of_terms(1, 1, 1))
    node.hear(heartbeat(5))
    node.disk_works = False
    assert not node.hear(take_over(5, 9, 4))
    assert (node.log.first_index, node.log.last_index, node.log.floor_context) == (10, 9, b"next offset 70")
    assert only(HeartbeatResponse, node.hear(heartbeat(5))).match == 0, "after a crash the old log would be back"
    assert node.group.commit == 9
    assert node.group.configuration == Configuration.of([1, 2, 3, 4])
    node.log.sync()
    node.group.written(node.now_ms)
    assert only(AppendResponse, node.take()).match == 9
    node.disk_works = True
    assert only(AppendResponse, node.hear(append(5, (9, 4), 5))).match == 10


def test_take_over_that_the_log_already_matches_keeps_it() -> None:
    node = Lone(log_of_terms(1, 2, 2, 2))
    assert only(AppendResponse, node.hear(take_over(3, 2, 2))).match == 2
    assert terms(node) == [1, 2, 2, 2]
    assert node.group.commit == 2
    assert only(AppendResponse, node.hear(append(3, (4, 2)))).match == 4


def test_take_over_of_what_is_committed_already_changes_nothing() -> None:
    node = Lone(log_of_terms(1, 1))
    node.hear(append(2, (2, 1), 2, commit=3))
    for late in (1, 3):
        assert only(AppendResponse, node.hear(take_over(2, late, 1))).match == 3
    assert terms(node) == [1, 1, 2]


def test_take_over_drops_a_divergent_suffix_and_its_configurations() -> None:
    node = Lone(log_of_terms(1, 1))
    entry = Entry(3, 2, EntryKind.CONFIGURATION, Configuration((9,), outgoing=(1, 2, 3)).encode())
    node.log.append_received([entry])
    restarted = Lone(node.log)
    restarted.group._replica.membership.appended(3, Configuration((9,), outgoing=(1, 2, 3)))
    restarted.hear(take_over(4, 2, 3))
    assert restarted.log.last_index == 2
    assert restarted.group.configuration == Configuration.of([1, 2, 3, 4])


def test_log_of_the_test_forgets_what_was_not_synced() -> None:
    log = MemoryLog()
    log.append_new(1, EntryKind.DATA, [b"a", b"b"])
    log.sync(1)
    assert [entry.data for entry in log.crash().stored] == [b"a"]
    assert not every(AppendResponse, [])
