"""An invariant that cannot fail proves nothing: each one here is broken on purpose, and must be noticed."""

from collections.abc import Sequence
from random import Random

import pytest

from tidelog.cluster import AllotProducerIds, Machine, decode_command, encode_command
from tidelog.raft import Configuration, Entry, EntryKind
from tidelog.wire.records import Record, build_batch

from .administrator import Administrator
from .disk import SimDisk
from .history import History, Violation, is_quorum
from .invariants import Invariants
from .shadow import Shadow

ALONE = Configuration((1,))


def noop(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.NOOP, b"")


def noops(*terms: int) -> list[Entry]:
    """Entries from index 1 on, one for each term."""
    return [noop(index, term) for index, term in enumerate(terms, start=1)]


def data(index: int, term: int, offset: int, value: bytes = b"v", *, records: int = 1) -> Entry:
    batch = build_batch([Record(value)] * records, base_offset=offset, leader_epoch=term)
    return Entry(index, term, EntryKind.DATA, bytes(batch))


def shadows(*logs: Sequence[Entry]) -> list[Shadow]:
    history = History(group=7)
    nodes = [Shadow(number, history, SimDisk(Random(0)), "") for number, _ in enumerate(logs, start=1)]
    for shadow, entries in zip(nodes, logs, strict=True):
        shadow.appended(entries)
    return nodes


class FoundLog:
    """What a log looks like that recovery has read from disk."""

    def __init__(self, entries: list[Entry], durable_index: int | None = None, base: tuple[int, int] = (0, 0)) -> None:
        self._entries = entries
        self._base, self._base_term = base
        self.first_index = self._base + 1
        self.last_index = self._base + len(entries)
        self.durable_index = self.last_index if durable_index is None else durable_index

    def configurations(self) -> list[tuple[int, bytes]]:
        return [(0, ALONE.encode())]

    def term_at(self, index: int) -> int:
        return self._entries[index - self.first_index].term if index > self._base else self._base_term

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        return self._entries[first - self.first_index : last - self.first_index + 1]


def broken(invariant: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=f"^{invariant}")


def test_two_leaders_of_one_term_are_noticed_also_over_time() -> None:
    one, two = shadows([], [])
    one.elected(3, ALONE)
    two.elected(4, Configuration((2,)))
    one.elected(3, ALONE)
    with broken("one leader a term"):
        two.elected(3, Configuration((2,)))


def test_a_leader_without_a_quorum_of_votes_is_noticed() -> None:
    (one,) = shadows([])
    with broken("leaders are elected"):
        one.elected(3, Configuration((1, 2, 3)))
    one.history.voted(2, term=3, candidate=1)
    one.elected(3, Configuration((1, 2, 3)))
    with broken("leaders are elected"):
        one.elected(3, Configuration((1, 2), outgoing=(3, 4)))


def test_two_votes_in_one_term_are_noticed() -> None:
    history = History(group=7)
    history.voted(1, term=5, candidate=2)
    history.voted(1, term=5, candidate=2)
    with broken("one vote a term"):
        history.voted(1, term=5, candidate=3)


def test_logs_may_differ_while_nothing_is_committed() -> None:
    shadows(noops(1, 1, 2), noops(1, 1, 3), noops(1, 1, 1))


def test_the_same_entry_after_different_ones_is_noticed() -> None:
    with broken("log matching"):
        shadows(noops(1, 1, 4), noops(1, 2, 4))


def test_the_same_entry_with_another_content_is_noticed() -> None:
    with broken("log matching"):
        shadows([data(1, 1, 0, b"this")], [data(1, 1, 0, b"that")])


def test_an_entry_behind_a_gap_is_noticed() -> None:
    with broken("indexes are dense"):
        shadows([noop(1, 1), noop(3, 1)])


def test_falling_terms_are_noticed() -> None:
    with broken("terms never fall"):
        shadows(noops(1, 3, 2))


def test_offsets_skip_raft_entries_and_count_records() -> None:
    shadows([data(1, 1, 0, records=3), noop(2, 2), data(3, 2, 3), data(4, 2, 4)])


@pytest.mark.parametrize("offset", [2, 4])
def test_offsets_with_a_hole_or_an_overlap_are_noticed(offset: int) -> None:
    with broken("offsets are dense"):
        shadows([data(1, 1, 0, records=3), data(2, 1, offset)])


def test_a_commit_that_another_node_contradicts_is_noticed() -> None:
    one, two = shadows(noops(1, 2), noops(1, 3))
    one.commit_moved(2, current_term=2)
    with broken("committed entries never change"):
        two.commit_moved(2, current_term=3)


def test_the_first_to_commit_an_entry_is_told_so() -> None:
    one, two = shadows(noops(1, 1), noops(1, 1))
    assert one.commit_moved(1, current_term=1) == [1]
    assert two.commit_moved(2, current_term=1) == [2]


def test_a_falling_commit_is_noticed() -> None:
    (one,) = shadows(noops(1, 1))
    one.commit_moved(2, current_term=1)
    with broken("commit never falls"):
        one.commit_moved(1, current_term=1)


def test_a_commit_beyond_the_log_is_noticed() -> None:
    (one,) = shadows(noops(1, 1))
    with broken("commit is within the log"):
        one.commit_moved(3, current_term=1)


def test_a_truncation_below_the_own_commit_is_noticed() -> None:
    (one,) = shadows(noops(1, 1, 1))
    one.commit_moved(2, current_term=1)
    one.truncated(3)
    with broken("nothing below commit"):
        one.truncated(2)


def test_a_truncation_of_what_others_committed_is_noticed() -> None:
    one, two, three = shadows(noops(1, 1), noops(1, 1), noops(1, 2))
    one.commit_moved(2, current_term=1)
    three.truncated(2)  # it has another entry there: that one may go
    with broken("nothing committed"):
        two.truncated(2)


def test_a_leader_that_lacks_a_committed_entry_is_noticed() -> None:
    one, two = shadows(noops(1, 1), noops(1))
    one.commit_moved(2, current_term=1)
    with broken("leaders have all"):
        two.elected(2, Configuration((2,)))


def test_a_late_leader_of_an_early_term_may_lack_what_later_terms_committed() -> None:
    one, two = shadows(noops(1, 3), noops(1))
    one.commit_moved(2, current_term=3)
    two.elected(2, Configuration((2,)))


def test_taking_over_from_an_entry_that_is_not_committed_is_noticed() -> None:
    one, two = shadows(noops(1, 1, 1), [])
    one.commit_moved(2, current_term=1)
    two.took_over(2, 1)
    assert (two.base, two.last, two.term_at(2), two.term_at(1)) == (2, 2, 1, None)
    with broken("only committed entries are taken over"):
        two.took_over(3, 1)


def test_a_recovered_log_may_end_anywhere_behind_what_was_durable() -> None:
    (one,) = shadows(noops(1, 1, 1))
    one.wrote(2)
    one.recovered(FoundLog(noops(1, 1)))
    assert (one.last, one.durable) == (2, 2)


def test_a_recovery_that_loses_durable_entries_is_noticed() -> None:
    (one,) = shadows(noops(1, 1, 1))
    one.wrote(2)
    with broken("what is durable survives"):
        one.recovered(FoundLog(noops(1)))


def test_a_recovery_that_brings_back_a_truncated_suffix_behind_new_entries_is_noticed() -> None:
    (one,) = shadows(noops(1, 1, 1))
    one.truncated(2)
    one.appended([noop(2, 2)])
    one.wrote(2)
    with broken("recovery brings back only"):
        one.recovered(FoundLog(noops(1, 2, 1)))


def test_a_log_that_takes_unsynced_bytes_for_durable_is_noticed() -> None:
    entry = data(1, 1, 0)
    disk = SimDisk(Random(0))
    one = Shadow(1, History(group=7), disk, "")
    one.appended([entry])
    file = disk.open_write("segment")
    file.write_at(0, [entry.data])
    disk.sync_directory("")
    one.recovered(FoundLog([entry], durable_index=0))
    with broken("durable means synced"):
        one.recovered(FoundLog([entry]))
    file.sync()
    one.recovered(FoundLog([entry]))


def test_a_configuration_in_force_that_is_not_the_newest_in_the_log_is_noticed() -> None:
    (one,) = shadows([])
    one.recovered(FoundLog([]))
    one.has_in_force(ALONE)
    pair = Configuration((1, 2))
    one.appended([Entry(1, 1, EntryKind.CONFIGURATION, pair.encode())])
    one.has_in_force(pair)
    one.truncated(1)
    with broken("the newest configuration is in force"):
        one.has_in_force(pair)
    one.has_in_force(ALONE)


def test_a_quorum_is_more_than_half_of_every_set_of_voters() -> None:
    assert is_quorum({1, 2}, Configuration((1, 2, 3)))
    assert not is_quorum({1, 2}, Configuration((1, 2, 3, 4)))
    assert not is_quorum({1, 2, 9}, Configuration((1, 2, 3, 4, 5)))
    assert is_quorum({1, 2, 4, 5}, Configuration((1, 2, 3), outgoing=(3, 4, 5)))
    assert not is_quorum({1, 2, 3}, Configuration((1, 2, 3), outgoing=(3, 4, 5)))


# What is made of the log


def committed(invariants: Invariants, group: int, *batches: bytearray) -> None:
    """These batches are all that was ever committed."""
    history = invariants.history(group)
    for index, batch in enumerate(batches, start=1):
        entry = Entry(index, 1, EntryKind.DATA, bytes(batch))
        history.entry_appended(1, 1 if index > 1 else 0, entry)
        history.entry_committed(1, index, 1, 1)


def of_producer(sequence: int, records: int, offset: int) -> bytearray:
    content = [Record(b"v")] * records
    return build_batch(content, offset, 1, producer_id=4, producer_epoch=0, base_sequence=sequence)


def command(content: bytes, offset: int) -> bytearray:
    return build_batch([Record(content)], offset, 1)


def test_a_batch_of_an_idempotent_producer_that_is_there_twice_or_missing_is_noticed() -> None:
    invariants = Invariants()
    committed(invariants, 1, of_producer(0, 2, 0), of_producer(2, 1, 2))
    invariants.check_producers(1)
    for wrong in (0, 1):
        invariants = Invariants()
        committed(invariants, 1, of_producer(0, 2, 0), of_producer(2 * wrong + wrong, 1, 2))
        with broken("an idempotent producer's batches"):
            invariants.check_producers(1)


def test_producers_that_two_nodes_know_differently_at_one_index_are_noticed() -> None:
    invariants = Invariants()
    invariants.producers_known(1, group=1, index=7, state=b"one")
    invariants.producers_known(2, group=1, index=8, state=b"two")
    invariants.producers_known(2, group=2, index=7, state=b"two")
    with broken("producers are known alike"):
        invariants.producers_known(2, group=1, index=7, state=b"two")


def test_a_state_of_the_cluster_that_differs_at_one_offset_is_noticed() -> None:
    invariants, machine = Invariants(), Machine()
    invariants.command_applied(1, 4, machine)
    invariants.command_applied(2, 4, Machine())
    machine.apply(AllotProducerIds(5))
    invariants.command_applied(1, 5, machine)
    with broken("the cluster's state is the same"):
        invariants.command_applied(2, 4, machine)


def test_a_state_that_the_commands_from_the_start_do_not_give_is_noticed() -> None:
    invariants, machine = Invariants(), Machine()
    machine.apply(AllotProducerIds(5))
    commands = [AllotProducerIds(5), machine.snapshot(), AllotProducerIds(7)]
    committed(invariants, 1, *(command(encode_command(do), offset) for offset, do in enumerate(commands)))
    machine.apply(AllotProducerIds(7))
    invariants.check_replay(1, machine)
    machine.apply(AllotProducerIds(1))
    with broken("replay gives the same state"):
        invariants.check_replay(1, machine)


def test_an_acknowledged_batch_must_be_committed_where_the_client_was_told() -> None:
    invariants = Invariants()
    committed(invariants, 1, command(b"first", 0), command(b"second", 1))
    invariants.acknowledged(1, 1, b"second")
    with broken("an acknowledgement names the batch"):
        invariants.acknowledged(1, 0, b"second")
    with broken("what is acknowledged is committed"):
        invariants.acknowledged(1, 2, b"third")


def test_a_disk_that_is_lost_takes_votes_and_logs_with_it_but_not_what_they_did() -> None:
    invariants = Invariants()
    invariants.add_node(2, SimDisk(Random(0)), "")
    history = invariants.history(1)
    history.voted(2, term=5, candidate=1)
    invariants.shadow(2, 1).appended(noops(1))
    invariants.lost(2)
    assert invariants.shadow(2, 1).last == 0
    history.voted(2, term=5, candidate=3)
    assert history.has_vote_of(2, 5, 1)
    assert history.has_vote_of(2, 5, 3)


def test_most_commands_of_the_administrator_can_be_carried_out_and_topics_come_and_go() -> None:
    machine, administrator = Machine(), Administrator([1, 2, 3], Random(1))
    done = rejected = created = 0
    for _ in range(400):
        applied = machine.apply(decode_command(administrator.command(machine.state)))
        done, rejected = done + (applied.rejection is None), rejected + (applied.rejection is not None)
        created += len(applied.created)
    assert done > rejected > 0
    assert created > 20
