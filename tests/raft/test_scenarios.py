"""The named scenarios: what the literature and other systems' bugs say must go right.

Sources: Ongaro and Ousterhout's paper (figures 7 and 8), Kafka's KIP-101 and KIP-279, and the checklist in the
project's reference. Scenarios of the disk (torn records, flipped bits) are tested where the disk is.
"""

import pytest

from tests.raft.harness import GROUP, World
from tests.raft.lone import Lone, append, every
from tests.raft.memory_log import MemoryLog, floor_context, log_of_terms
from tidelog.raft import (
    Action,
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Change,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Reason,
    Role,
    TakeOver,
    VoteRequest,
    VoteResponse,
)

FIGURE_7_LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7_FOLLOWERS = {
    "a: one entry is missing": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b: many entries are missing": (1, 1, 1, 4),
    "c: one entry too many": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d: two entries too many, of a later term": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e: entries missing, and entries too many": (1, 1, 1, 4, 4, 4, 4),
    "f: entries of terms the leader never saw": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("follower", FIGURE_7_FOLLOWERS.values(), ids=FIGURE_7_FOLLOWERS.keys())
def test_raft_figure_7(follower: tuple[int, ...]) -> None:
    """The leader of term 8 brings each follower's log to its own, in at most one step for each of its terms."""
    logs = {1: log_of_terms(*FIGURE_7_LEADER), 2: log_of_terms(*follower), 3: log_of_terms(*FIGURE_7_LEADER)}
    world = World([1, 2, 3], logs=logs, hard_states={node: HardState(7) for node in (1, 2, 3)})
    world.cut(2, 3)
    world.elect(1)
    world.run(300)
    assert world.group(1).term == 8
    assert world.terms(2) == [*FIGURE_7_LEADER, 8]
    assert world.log(2).stored == world.log(1).stored
    assert world.group(2).commit == 11
    rejections = [message for message in world.sent if isinstance(message, AppendRejected)]
    assert len(rejections) <= 2


FIGURE_8_C = {
    1: (1, 2),
    2: (1, 2),
    3: (1,),
    4: (1,),
    5: (1, 3),
}
"""Node 1 led term 2, node 5 term 3. Now node 1 is to lead term 4, while 5 is down."""


def figure_8() -> World:
    logs = {node: log_of_terms(*terms) for node, terms in FIGURE_8_C.items()}
    world = World(logs.keys(), logs=logs, hard_states={node: HardState(3) for node in logs})
    world.crash(5)
    return world


def test_raft_figure_8_entry_of_an_earlier_term_on_a_majority_is_not_committed() -> None:
    """In term 4 the entry of term 2 reaches a majority (c). Were it committed by that, node 5 could still be elected,
    by 3 and 4, and undo it (d)."""
    world = figure_8()
    world.lost = lambda message: isinstance(message, AppendRequest)
    world.elect(1)
    for node in (2, 3):
        world.deliver(append_of(world, 1, node, Entry(2, 2, EntryKind.DATA, b"2.2")))
    world.settle()
    assert [world.terms(node) for node in (1, 2, 3, 4)] == [[1, 2, 4], [1, 2], [1, 2], [1]]
    assert world.group(1).commit == 0
    world.crash(1)
    world.restart(5)
    world.heal()
    world.elect(5)
    world.run(300)
    assert world.terms(2) == world.terms(3) == [1, 3, world.group(5).term]


def test_raft_figure_8_entry_of_an_earlier_term_commits_with_one_of_the_leaders_own() -> None:
    """In term 4 also its no-op reaches a majority: both are committed, and node 5 cannot be elected any more (e)."""
    world = figure_8()
    world.elect(1)
    assert world.group(1).commit == 3
    world.crash(1)
    world.restart(5)
    world.run(10_000)
    assert world.leader != 5
    assert world.terms(5)[:3] == [1, 2, 4]


def append_of(world: World, source: int, destination: int, *entries: Entry) -> AppendRequest:
    """An append as the leader would send it after having stepped back before these entries."""
    previous = entries[0].index - 1
    group = world.group(source)
    return AppendRequest(
        GROUP, source, destination, group.term, previous, world.log(source).term_at(previous), entries, group.commit, 0
    )


def test_noop_lost_then_re_elected() -> None:
    """A leader's no-op reaches nobody, it dies, comes back and is elected again: both no-ops are in order, and
    everything before them is committed."""
    world = World([1, 2, 3], logs={node: log_of_terms(1) for node in (1, 2, 3)})
    world.lost = lambda message: isinstance(message, AppendRequest)
    world.elect(1)
    world.sync(1)
    world.crash(1)
    world.restart(1)
    world.heal()
    world.elect(1)
    world.run(300)
    assert world.terms(1) == world.terms(2) == world.terms(3)
    assert world.terms(1)[0] == 1
    assert len(world.terms(1)) == 3
    assert world.group(1).commit == 3


def test_high_watermark_learned_by_nobody_before_leader_dies() -> None:
    """The leader commits and answers, and dies before any follower hears of it. The entry is there, and committed."""
    world = World([1, 2, 3])
    world.elect(1)
    world.run(200)
    ticket = world.propose(1, b"acknowledged")
    world.settle()
    assert world.committed(1, ticket)
    assert {world.group(node).commit for node in (2, 3)} == {1}
    world.crash(1)
    world.run(5_000)
    assert world.data(world.leader, committed=True) == [b"acknowledged"]


def test_kip_101_scenario_1_high_watermark_truncation_followed_by_immediate_leader_election() -> None:
    """A follower that does not yet know an entry to be committed restarts, and the leader dies at once. Truncating to
    its own commit index, it would lose the entry."""
    world = World([1, 2])
    world.elect(1)
    ticket = world.propose(1, b"m2")
    world.settle()
    assert world.committed(1, ticket)
    assert world.group(2).commit < world.log(2).last_index
    world.crash(2)
    world.restart(2)
    assert world.data(2) == [b"m2"]
    world.crash(1)
    world.restart(1)
    world.elect(2)
    assert world.data(2, committed=True) == [b"m2"]
    world.run(300)
    assert world.data(1, committed=True) == [b"m2"]


def test_kip_101_scenario_2_replica_divergence_on_restart_after_multiple_hard_failures() -> None:
    """Both crash; one comes back without its last entry, leads, and writes another at the same index. The other then
    replaces its own, as its term is another, though the index is the same."""
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(3)
    world.nodes[2].disk_works = False
    ticket = world.propose(1, b"m2")
    world.settle()
    assert not world.committed(1, ticket), "only node 1 has it on its disk"
    world.crash(1, 2)
    world.restart(2, 3)
    world.elect(2)
    other = world.propose(2, b"m3")
    world.settle()
    assert world.committed(2, other)
    world.restart(1)
    world.run(500)
    assert world.log(1).stored == world.log(2).stored
    assert world.data(1, committed=True) == [b"m3"]


def test_kip_279_double_fail_over() -> None:
    """Two quick changes of leader, each having written what the other does not have, with terms the other has never
    heard of. Stepping back finds the place where they part, and nothing beyond it survives."""
    logs = {
        1: log_of_terms(1, 1, 1, 2, 2),
        2: log_of_terms(1, 1, 1, 3, 3, 3, 3),
        3: log_of_terms(1, 1, 1, 3, 3),
    }
    world = World([1, 2, 3], logs=logs, hard_states={node: HardState(3) for node in logs})
    world.elect(2)
    world.run(300)
    assert world.terms(1) == world.terms(2) == world.terms(3) == [1, 1, 1, 3, 3, 3, 3, 4]
    assert world.log(1).stored == world.log(2).stored


@pytest.mark.parametrize(
    "rejoining",
    [(1, 1, 2, 2, 2, 2, 2, 2), (1,), (1, 1, 3, 3, 3), ()],
    ids=["longer log", "shorter log", "divergent log", "empty follower"],
)
def test_rejoin_with_longer_or_shorter_or_divergent_log_or_empty_follower(rejoining: tuple[int, ...]) -> None:
    whole = (1, 1, 2, 2, 5, 5)
    logs = {1: log_of_terms(*whole), 2: log_of_terms(*whole), 3: log_of_terms(*rejoining)}
    world = World([1, 2, 3], logs=logs, hard_states={node: HardState(5) for node in logs})
    world.crash(3)
    world.elect(1)
    world.restart(3)
    world.run(500)
    assert world.terms(3) == [*whole, 6]
    assert world.log(3).stored == world.log(1).stored
    assert world.group(3).commit == 7


def test_stale_duplicate_append_entries_after_truncation() -> None:
    """An append of an earlier leader, repeated after the follower has replaced its entries, changes nothing."""
    node = Lone(log_of_terms(1))
    old = append(2, (1, 1), 2, 2, 2, source=2)
    node.hear(old)
    node.hear(append(3, (1, 1), 3, 3, commit=3, source=3))
    after = list(node.log.stored)
    answers = node.hear(old)
    assert node.log.stored == after
    assert {answer.term for answer in answers} == {3}
    assert not every(AppendResponse, answers)


def test_re_ordered_pipeline() -> None:
    """Appends arrive in any order: the follower ends with all of them, truncates nothing, and acknowledges no hole."""
    for order in ((2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 2, 1), (1, 2, 0)):
        world = World([1, 2])
        world.elect(1)
        world.run(100)
        for number in range(3):
            world.propose(1, b"%d" % number)
            world.collect(1)
        arriving, world.wire = world.wire, []
        assert len(arriving) == 3
        longest = 0
        for place in order:
            world.deliver(arriving[place])
            world.sync(2)
            assert world.log(2).last_index >= longest
            longest = world.log(2).last_index
        world.run(300)
        assert world.data(2) == [b"0", b"1", b"2"]
        assert world.group(1).commit == 4


def test_vote_not_persisted_before_a_crash_was_never_given() -> None:
    """The vote is decided, the disk is slow, the node dies. Having forgotten, it votes for another: no harm, since the
    first candidate was never told."""
    world = World([1, 2, 3])
    world.crash(3)
    world.nodes[2].disk_works = False
    world.group(1).campaign(world.now_ms)
    world.settle()
    assert world.group(1).role is Role.CANDIDATE
    assert not [message for message in world.sent if isinstance(message, VoteResponse) and not message.pre]
    world.crash(2)
    world.restart(2)
    assert world.nodes[2].hard_state == HardState(0, None)
    world.deliver(VoteRequest(GROUP, 3, 2, 1, 0, 0, pre=False, forced=False))
    world.settle()
    assert world.nodes[2].hard_state == HardState(1, 3)
    world.run(300)
    assert not world.leaders


def test_crash_between_log_write_and_vote_write() -> None:
    """Entries of a new term reach the disk, the term does not. The node restarts in the old term with newer entries
    than that: it must not acknowledge, and is led on without harm."""
    world = World([1, 2, 3], logs={node: log_of_terms(1) for node in (1, 2, 3)})
    world.nodes[3].disk_works = False
    world.elect(1)
    world.settle()
    world.log(3).sync()
    assert world.log(3).durable_index == 2
    assert not [message for message in world.sent if message.source == 3 and message.term == 2 and not is_pre(message)]
    world.crash(3)
    world.restart(3)
    assert (world.group(3).term, world.terms(3)) == (1, [1, 2])
    world.run(300)
    assert (world.group(3).term, world.group(3).leader) == (2, 1)
    ticket = world.propose(1, b"x")
    world.run(300)
    assert world.committed(1, ticket)
    assert world.log(3).stored == world.log(1).stored


def is_pre(message: object) -> bool:
    return isinstance(message, (VoteRequest, VoteResponse)) and message.pre


@pytest.mark.parametrize("slow", [1, 2], ids=["of the leader", "of a follower"])
def test_slow_disk_beyond_election_timeout(slow: int) -> None:
    """A disk that stalls for many election timeouts costs nobody the leadership, and no acknowledged entry."""
    world = World([1, 2, 3])
    world.elect(1)
    term = world.group(1).term
    world.nodes[slow].disk_works = False
    tickets = []
    for number in range(10):
        tickets.append(world.propose(1, b"%d" % number))
        world.run(1_000)
    assert world.leader == 1
    assert world.group(1).term == term
    assert all(world.committed(1, ticket) for ticket in tickets)
    world.nodes[slow].disk_works = True
    world.run(300)
    assert world.log(slow).durable_index == world.log(1).last_index
    assert world.data(slow) == world.data(1)


def test_slow_disks_of_a_majority_commit_nothing_until_they_are_done() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.nodes[2].disk_works = world.nodes[3].disk_works = False
    ticket = world.propose(1, b"x")
    world.run(5_000)
    assert world.leader == 1
    assert not world.committed(1, ticket)
    world.nodes[3].disk_works = True
    world.run(200)
    assert world.committed(1, ticket)


@pytest.mark.parametrize("gap", [0, 3], ids=["without offset gaps", "with offset gaps"])
def test_follower_needing_a_compacted_entry(gap: int) -> None:
    """What the follower needs is deleted. It begins anew where the leader's log begins, with what the leader's log says
    a log there must know. (To the core that is bytes; that they hold the right offset is tested where offsets are.)"""
    world = World([1, 2, 3])
    world.elect(1)
    world.run(100)
    world.crash(3)
    for number in range(10):
        world.propose(1, b"%d" % number)
        for _ in range(gap):
            world.group(1).propose(EntryKind.LOG_START, [b"takes no offset"], world.now_ms + 9_999, world.now_ms)
    world.settle()
    leader = world.log(1)
    world.delete_before(1, 7)
    context = leader.takeover_context()
    world.restart(3)
    world.run(500)
    follower = world.log(3)
    assert [message for message in world.sent if isinstance(message, TakeOver)]
    assert (follower.first_index, follower.floor_term, follower.floor_context) == (7, 1, context)
    assert follower.stored == leader.stored
    assert world.group(3).commit == world.group(1).commit
    world.crash(3)
    world.restart(3)
    world.run(500)
    assert world.log(3).stored == leader.stored


def _earliest(world: World, node: int) -> int:
    """The log start as a node serves it: what the committed log says, whatever the node itself has deleted."""
    log, commit = world.log(node), world.group(node).commit
    starts = [int(e.data) for e in log.stored if e.kind is EntryKind.LOG_START and e.index <= commit]
    return max([log.first_index - 1, *starts])


def test_earliest_after_deletion_on_one_node_only_then_fail_over() -> None:
    """The leader moves the log start, deletes, answers a client, and dies before the others hear that it may be done.
    Deletion by each node on its own would let the earliest offset fall back; the entry makes the next leader agree
    before it serves."""
    world = World([1, 2, 3])
    world.elect(1)
    for number in range(5):
        world.propose(1, b"%d" % number)
    world.settle()
    ticket = world.group(1).propose(EntryKind.LOG_START, [b"4"], world.now_ms + 9_999, world.now_ms)
    world.settle()
    assert world.committed(1, ticket)
    world.delete_before(1, 5)
    earliest = _earliest(world, 1)
    assert earliest == 4
    assert [world.log(node).first_index for node in (2, 3)] == [1, 1]
    assert {_earliest(world, node) for node in (2, 3)} == {0}, "the others have not heard of it yet"
    world.crash(1)
    while not any(world.group(node).role is Role.LEADER for node in (2, 3)):
        world.run(100)
    (leader,) = world.leaders
    while not world.group(leader).ready:
        world.run(10)
    assert _earliest(world, leader) >= earliest
    world.restart(1)
    world.run(3_000)
    assert {_earliest(world, node) for node in (1, 2, 3)} == {earliest}


def test_all_nodes_killed_and_restarted() -> None:
    """Everything acknowledged is there, and nothing else is needed than the disks."""
    world = World([1, 2, 3, 4, 5])
    world.elect(1)
    tickets = [world.propose(1, b"%d" % number) for number in range(50)]
    world.settle()
    assert all(world.committed(1, ticket) for ticket in tickets)
    world.propose(1, b"not on any disk but the leader's")
    world.collect(1)
    world.log(1).sync()
    world.crash(1, 2, 3, 4, 5)
    world.restart(1, 2, 3, 4, 5)
    assert {world.group(node).commit for node in world.nodes} == {0}
    world.run(5_000)
    leader = world.leader
    assert world.data(leader, committed=True)[:50] == [b"%d" % number for number in range(50)]
    for node in world.nodes:
        assert world.log(node).stored == world.log(leader).stored


def test_back_to_back_leader_failures() -> None:
    world = World([1, 2, 3, 4, 5])
    acknowledged: list[bytes] = []
    for number in range(6):
        world.run(5_000)
        leader = world.leader
        content = b"%d" % number
        ticket = world.propose(leader, content)
        world.settle()
        assert world.committed(leader, ticket)
        acknowledged.append(content)
        world.crash(leader)
        world.restart(*(set(world.nodes) - set(world.up) - {leader}))
    world.run(5_000)
    assert world.data(world.leader, committed=True) == acknowledged


def test_leader_partitioned_away_with_a_minority_loses_its_uncommitted_entries_only() -> None:
    world = World([1, 2, 3, 4, 5])
    world.elect(1)
    kept = world.propose(1, b"kept")
    world.settle()
    world.isolate(1, 2)
    lost = world.propose(1, b"lost")
    world.run(5_000)
    assert world.committed(1, kept)
    assert world.refused(1, lost) is Reason.LEADERSHIP_LOST
    leader = world.leader
    assert leader in (3, 4, 5)
    newer = world.propose(leader, b"newer")
    world.settle()
    assert world.committed(leader, newer)
    world.heal()
    world.run(3_000)
    for node in world.nodes:
        assert world.data(node, committed=True) == [b"kept", b"newer"]


def test_one_node_loses_its_disk_and_comes_back_as_a_new_member() -> None:
    """Whoever forgot what it promised must not go on as if it had not: it is removed, and added again."""
    world = World([1, 2, 3])
    world.elect(1)
    for number in range(10):
        world.propose(1, b"%d" % number)
    world.settle()
    world.crash(3)
    world.change(1, Change(Action.REMOVE, 3))
    world.run(300)
    world.nodes[3].log = MemoryLog(floor_context=floor_context(0, world.configuration))
    world.nodes[3].log.sync()
    world.nodes[3].hard_state = HardState()
    world.restart(3)
    for action in (Action.ADD_LEARNER, Action.ADD_VOTER):
        ticket = world.change(1, Change(action, 3))
        world.run(300)
        assert world.committed(1, ticket)
    assert world.log(3).stored == world.log(1).stored
    assert world.group(3).configuration == Configuration.of([1, 2, 3])
