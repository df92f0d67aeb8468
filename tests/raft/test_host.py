"""Many groups on a few nodes: batching, sleep, and what wakes whom."""

from random import Random

import pytest

from tests.raft.harness import GROUP
from tests.raft.lone import Lone, append, every, heartbeat, only, vote_request
from tests.raft.memory_log import MemoryLog, floor_context, log_of_terms
from tidelog.raft import (
    Answer,
    AppendResponse,
    Committed,
    Configuration,
    ConfigurationError,
    Effects,
    EntryKind,
    Envelope,
    Group,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    MemberView,
    RaftSettings,
    Readable,
    Reason,
    Refused,
    Role,
    VoteRequest,
    VoteResponse,
)
from tidelog.raft.group import FIRST_ATTEMPTS_MAX
from tidelog.raft.host import Host
from tidelog.raft.timers import BUCKET_MS, Timers

SETTINGS = RaftSettings(sleep_after_ms=1_000)
ELECTION_MS = SETTINGS.election_timeout_ms
ASLEEP_MS = 2 * ELECTION_MS + SETTINGS.sleep_after_ms + 500


class Cluster:
    """Nodes with a host each, the same groups on all of them; disks work at once."""

    def __init__(self, nodes: int = 3, groups: int = 3) -> None:
        self.now_ms = 0
        self.members = Configuration.of(range(1, nodes + 1))
        self.groups = range(groups)
        self.hosts: dict[int, Host] = {}
        self.disks: dict[tuple[int, int], tuple[MemoryLog, HardState]] = {}
        self.incarnations = dict.fromkeys(self.members.voters, 0)
        self.cut: set[tuple[int, int]] = set()
        self.paused: set[int] = set()
        self.wire: list[Envelope] = []
        self.sent: list[Envelope] = []
        self.effects: dict[int, int] = {}
        self.answers: dict[tuple[int, int], dict[int, Answer]] = {}
        for node in self.members.voters:
            for group in self.groups:
                log = MemoryLog(floor_context=floor_context(0, self.members))
                log.sync()
                self.disks[node, group] = (log, HardState())
            self.start(node)

    def start(self, node: int) -> None:
        self.incarnations[node] += 1
        host = Host(node, self.incarnations[node], SETTINGS, Random(node * 100 + self.incarnations[node]), self.now_ms)
        self.hosts[node] = host
        for group in self.groups:
            log, hard_state = self.disks[node, group]
            log = log.crash()
            self.disks[node, group] = (log, hard_state)
            host.add(group, log, hard_state, log.configurations(), self.now_ms)

    def kill(self, node: int) -> None:
        del self.hosts[node]

    def group(self, node: int, group: int) -> Group:
        return self.hosts[node].group(group)

    def leader(self, group: int) -> int:
        found = [node for node in self.hosts if self.group(node, group).role is Role.LEADER]
        assert found, f"nobody leads group {group}"
        return max(found, key=lambda node: self.group(node, group).term)

    def elect(self, node: int) -> None:
        """The node leads all groups."""
        for group in self.groups:
            self.hosts[node].campaign(group, self.now_ms)
        self.turn()
        assert all(self.leader(group) == node for group in self.groups)

    def poll(self, node: int) -> bool:
        host = self.hosts[node]
        work = host.poll(self.now_ms)
        self.sent.extend(work.envelopes)
        self.wire.extend(work.envelopes)
        for group, effects in work.groups:
            self.do(node, group, effects)
        wrote = False
        for group, effects in work.groups:
            if effects.hard_state is not None:
                host.hard_state_written(group, effects.hard_state, self.now_ms)
                wrote = True
        for group in self.groups:
            if self.disks[node, group][0].sync():
                host.written(group, self.now_ms)
                wrote = True
        return wrote

    def do(self, node: int, group: int, effects: Effects) -> None:
        self.effects[node] = self.effects.get(node, 0) + 1
        if effects.hard_state is not None:
            self.disks[node, group] = (self.disks[node, group][0], effects.hard_state)
        for answer in effects.answers:
            self.answers.setdefault((node, group), {})[answer.ticket] = answer

    def turn(self) -> None:
        """Everything that can happen without time passing."""
        for _ in range(100):
            busy = False
            for node in self.hosts:
                if node not in self.paused:
                    busy |= self.poll(node)
            arriving, self.wire = self.wire, []
            for envelope in arriving:
                if envelope.destination in self.paused:
                    self.wire.append(envelope)
                elif envelope.destination in self.hosts and (envelope.source, envelope.destination) not in self.cut:
                    self.hosts[envelope.destination].receive(envelope, self.now_ms)
                    busy = True
            if not busy:
                return
        raise AssertionError("the hosts never stop talking")

    def run(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        self.turn()
        while self.now_ms < end_ms:
            deadlines = [
                deadline
                for node, host in self.hosts.items()
                if node not in self.paused and (deadline := host.next_deadline_ms()) is not None
            ]
            self.now_ms = min(end_ms, max(self.now_ms + 1, min(deadlines, default=end_ms)))
            self.turn()

    def awake(self, node: int) -> int:
        return self.hosts[node].groups_awake

    def sleep(self) -> None:
        self.run(ASLEEP_MS)
        for node in self.hosts:
            assert self.awake(node) == 0, f"node {node} has {self.awake(node)} groups awake"


def propose(cluster: Cluster, node: int, group: int) -> int:
    ticket = cluster.hosts[node].propose(group, EntryKind.DATA, [b"x"], cluster.now_ms + 60_000, cluster.now_ms)
    assert isinstance(ticket, int), ticket
    return ticket


def test_thousand_groups_elect_go_to_sleep_and_then_cost_nothing() -> None:
    cluster = Cluster(groups=1_000)
    for group in cluster.groups:
        cluster.hosts[group % 3 + 1].campaign(group, cluster.now_ms)
    cluster.run(500)
    assert [cluster.leader(group) for group in cluster.groups] == [group % 3 + 1 for group in cluster.groups]
    cluster.sleep()
    cluster.sent.clear()
    cluster.effects.clear()
    started_ms = cluster.now_ms
    for host in cluster.hosts.values():
        for group in cluster.groups:
            assert host.group(group).next_deadline_ms is None
    cluster.run(10_000)
    assert not cluster.effects, "no group did anything"
    assert all(not envelope.messages for envelope in cluster.sent)
    seconds = (cluster.now_ms - started_ms) / 1_000
    assert len(cluster.sent) <= 6 * 20 * seconds, "one empty envelope a peer and heartbeat interval"


def test_messages_of_all_groups_to_one_node_leave_in_one_envelope() -> None:
    cluster = Cluster(groups=50)
    cluster.elect(1)
    for group in cluster.groups:
        propose(cluster, 1, group)
    work = cluster.hosts[1].poll(cluster.now_ms)
    assert sorted((envelope.destination, len(envelope.messages)) for envelope in work.envelopes) == [(2, 50), (3, 50)]
    assert {envelope.incarnation for envelope in work.envelopes} == {1}


def acknowledgements(cluster: Cluster, leader: int) -> list[Envelope]:
    """What the followers answer to what the leader has to say; it has written its own by then."""
    cluster.poll(leader)
    cluster.poll(leader)
    arriving, cluster.wire = cluster.wire, []
    for envelope in arriving:
        follower = envelope.destination
        cluster.hosts[follower].receive(envelope, cluster.now_ms)
        cluster.poll(follower)
        cluster.poll(follower)
    return [envelope for envelope in cluster.wire if envelope.messages]


def test_the_last_acknowledgement_of_an_entry_makes_no_work() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    ticket = propose(cluster, 1, 0)
    first, last = acknowledgements(cluster, 1)
    leader = cluster.hosts[1]
    assert not leader.has_work
    leader.receive(first, cluster.now_ms)
    assert leader.has_work
    cluster.poll(1)
    assert isinstance(cluster.answers[1, 0][ticket], Committed)
    leader.receive(last, cluster.now_ms)
    assert not leader.has_work
    assert [view.match for view in leader.members(0, cluster.now_ms)] == [leader.group(0).commit] * 3


def test_acknowledgement_that_a_read_waited_behind_lets_the_next_round_begin() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.run(ELECTION_MS)
    cluster.cut = {(2, 1), (3, 1)}
    cluster.run(ELECTION_MS - 20)  # the lease has run out, and nobody has stepped down yet
    leader = cluster.hosts[1]
    tickets: list[int] = []
    for _ in range(2):  # the second comes after the first one's round has begun
        ticket = leader.read(0, cluster.now_ms + 60_000, cluster.now_ms)
        assert isinstance(ticket, int)
        tickets.append(ticket)
        cluster.poll(1)
    group = leader.group(0)
    round_ = max(m.round for e in cluster.sent for m in e.messages if isinstance(m, Heartbeat))
    response = AppendResponse(0, 2, 1, group.term, group.commit, True, round_)
    leader.receive(Envelope(2, 1, 1, [response]), cluster.now_ms)
    assert leader.has_work


def test_acknowledgement_wakes_a_leader_that_sleeps() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.sleep()
    leader = cluster.hosts[1]
    group = leader.group(0)
    leader.receive(Envelope(2, 1, 1, [AppendResponse(0, 2, 1, group.term, group.commit, True, 0)]), cluster.now_ms)
    assert leader.has_work
    cluster.poll(1)
    assert cluster.awake(1) == 1


def test_sleeping_group_wakes_for_a_proposal_and_sleeps_again() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.sleep()
    ticket = propose(cluster, 1, 2)
    cluster.run(50)
    assert isinstance(cluster.answers[1, 2][ticket], Committed)
    assert [cluster.awake(node) for node in (1, 2, 3)] == [1, 1, 1]
    cluster.sleep()
    assert {cluster.group(node, 2).commit for node in (1, 2, 3)} == {2}


def test_sleeping_leader_has_no_lease_and_a_read_wakes_it_to_ask() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.sleep()
    cluster.run(5_000)
    host = cluster.hosts[1]
    assert host.lease_index(0, cluster.now_ms) is None
    ticket = host.read(0, cluster.now_ms + 1_000, cluster.now_ms)
    cluster.run(50)
    assert isinstance(ticket, int)
    assert cluster.answers[1, 0][ticket] == Readable(ticket, 1)


def test_followers_wake_when_the_leaders_node_dies_and_elect_another() -> None:
    cluster = Cluster(groups=20)
    cluster.elect(1)
    cluster.sleep()
    cluster.kill(1)
    cluster.run(ELECTION_MS - 200)
    assert cluster.awake(2) == cluster.awake(3) == 0
    cluster.run(3 * ELECTION_MS)
    assert {cluster.leader(group) for group in cluster.groups} <= {2, 3}


def test_followers_wake_when_the_leaders_node_has_restarted_however_quickly() -> None:
    cluster = Cluster(groups=20)
    cluster.elect(1)
    cluster.sleep()
    cluster.kill(1)
    cluster.start(1)
    cluster.run(300)
    assert cluster.awake(2) == cluster.awake(3) == 20, "without the incarnation nobody would have noticed"
    cluster.run(4 * ELECTION_MS)
    assert all(cluster.group(cluster.leader(group), group).ready for group in cluster.groups)


def test_restarted_follower_wakes_the_leader_and_is_led_again() -> None:
    cluster = Cluster(groups=20)
    cluster.elect(1)
    cluster.sleep()
    cluster.kill(3)
    cluster.start(3)
    cluster.run(300)
    assert {cluster.group(3, group).leader for group in cluster.groups} == {1}
    assert {cluster.group(3, group).commit for group in cluster.groups} == {1}
    cluster.sleep()
    assert {cluster.leader(group) for group in cluster.groups} == {1}


def test_dead_follower_does_not_keep_groups_awake_and_is_brought_up_to_date_when_it_returns() -> None:
    cluster = Cluster(groups=20)
    cluster.elect(1)
    cluster.run(500)
    cluster.kill(3)
    cluster.sleep()
    propose(cluster, 1, 4)
    cluster.sleep()
    cluster.start(3)
    cluster.run(500)
    assert cluster.group(3, 4).commit == 2
    cluster.sleep()


def test_leader_whose_followers_nodes_are_dead_does_not_sleep_but_steps_down() -> None:
    cluster = Cluster(groups=5)
    cluster.elect(1)
    cluster.sleep()
    cluster.kill(2)
    cluster.kill(3)
    cluster.run(3 * ELECTION_MS)
    assert {cluster.group(1, group).role for group in cluster.groups} <= {Role.FOLLOWER, Role.PRE_CANDIDATE}
    assert cluster.awake(1) == 5


def test_follower_that_lost_sight_of_the_leader_does_not_wake_the_other_follower() -> None:
    cluster = Cluster(groups=3)
    cluster.elect(1)
    cluster.sleep()
    cluster.cut |= {(1, 3), (3, 1)}
    cluster.run(3 * ELECTION_MS)
    assert cluster.awake(3) == 3, "it asks for votes"
    assert {cluster.group(2, group).leader for group in cluster.groups} == {1}
    assert {cluster.leader(group) for group in cluster.groups} == {1}
    cluster.cut.clear()
    cluster.sleep()
    assert {cluster.group(3, group).leader for group in cluster.groups} == {1}


def test_sleeping_follower_refuses_its_vote_while_the_leaders_node_lives() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.sleep()
    cluster.run(5_000)
    rival = VoteRequest(0, 3, 2, 9, 99, 9, pre=False, forced=False)
    cluster.hosts[2].receive(Envelope(3, 2, 1, [rival]), cluster.now_ms)
    cluster.run(10)
    follower = cluster.group(2, 0)
    assert (follower.term, follower.leader, follower.asleep) == (1, 1, True)


def test_sleeping_follower_forgets_a_leader_that_asks_for_votes() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.sleep()
    request = VoteRequest(0, 1, 2, 2, 1, 1, pre=True, forced=False)
    cluster.hosts[2].receive(Envelope(1, 2, 1, [request]), cluster.now_ms)
    follower = cluster.group(2, 0)
    assert (follower.leader, follower.asleep) == (None, False)


def test_follower_that_slept_is_found_by_the_new_leader_of_another_node() -> None:
    """Only node 3 cannot hear the leader any more, and wins while node 2, too, has lost it: both rejoin."""
    cluster = Cluster(groups=4)
    cluster.elect(1)
    cluster.sleep()
    cluster.cut |= {(1, 2), (1, 3)}
    cluster.run(5 * ELECTION_MS)
    assert {cluster.leader(group) for group in cluster.groups} <= {2, 3}
    cluster.cut.clear()
    cluster.sleep()
    assert len({cluster.group(node, 0).leader for node in (1, 2, 3)}) == 1


def test_late_proposal_to_sleep_does_not_put_a_follower_to_sleep_for_good() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.sleep()
    late = next(
        envelope
        for envelope in reversed(cluster.sent)
        if envelope.destination == 2 and any(isinstance(beat, Heartbeat) and beat.sleep for beat in envelope.messages)
    )
    cluster.hosts[1].read(0, cluster.now_ms + 1_000, cluster.now_ms)
    cluster.run(250)
    assert not cluster.group(2, 0).asleep
    cluster.hosts[2].receive(late, cluster.now_ms)
    assert not cluster.group(2, 0).asleep, "an older round than the newest it has seen"


def test_follower_sleeps_only_with_all_that_is_committed_verified_and_on_its_disk() -> None:
    for commit, sleeps in ((2, True), (1, False), (3, False)):
        node = Lone(log_of_terms(1, 1), alive={2, 3})
        node.hear(append(1, (2, 1)))
        answer = only(HeartbeatResponse, node.hear(heartbeat(1, commit=commit, sleep=True)))
        assert answer.sleeping == node.group.asleep == sleeps
    unverified = Lone(log_of_terms(1, 1), alive={2, 3})
    assert not only(HeartbeatResponse, unverified.hear(heartbeat(1, commit=2, sleep=True))).sleeping
    slow = Lone(log_of_terms(1), alive={2, 3})
    slow.hear(append(1, (1, 1)))
    slow.disk_works = False
    slow.hear(append(1, (1, 1), 1))
    assert not only(HeartbeatResponse, slow.hear(heartbeat(1, commit=2, sleep=True))).sleeping
    unwatched = Lone(log_of_terms(1, 1))
    unwatched.hear(append(1, (2, 1)))
    assert not only(HeartbeatResponse, unwatched.hear(heartbeat(1, commit=2, sleep=True))).sleeping


def idle_leader(alive: set[int]) -> Lone:
    """Leads, both followers have everything, and it may sleep as soon as it likes."""
    leader = Lone(settings=RaftSettings(sleep_after_ms=0), alive=alive)
    leader.lead()
    for node in (2, 3):
        leader.hear(AppendResponse(0, node, 1, 1, 1, accepting=True, round=0))
    return leader


def beat(leader: Lone) -> Heartbeat:
    leader.now_ms += SETTINGS.heartbeat_ms
    leader.group.tick(leader.now_ms)
    return every(Heartbeat, leader.take())[0]


def agree(leader: Lone, node: int, round_: int) -> None:
    leader.hear(HeartbeatResponse(0, node, 1, 1, 1, 1, accepting=True, sleeping=True, round=round_))


def test_leader_sleeps_when_every_living_follower_has_agreed_to_the_present_proposal() -> None:
    leader = idle_leader({2, 3})
    first = beat(leader)
    assert first.sleep
    agree(leader, 2, first.round)
    assert not leader.group.asleep
    leader.group.wake(leader.now_ms, leader.now_ms)
    second = beat(leader)
    assert second.sleep
    agree(leader, 3, second.round)
    assert not leader.group.asleep, "node 2 agreed to an earlier proposal, and may be awake since"
    agree(leader, 2, first.round)
    assert not leader.group.asleep
    agree(leader, 2, second.round)
    assert leader.group.asleep


def test_leader_without_a_living_quorum_does_not_propose_to_sleep() -> None:
    assert beat(idle_leader({2})).sleep
    assert not beat(idle_leader(set())).sleep


def test_leader_does_not_propose_to_sleep_while_a_living_follower_lags() -> None:
    leader = idle_leader({2, 3})
    leader.group.propose(EntryKind.DATA, [b"x"], 10**9, leader.now_ms)
    leader.take()
    leader.hear(AppendResponse(0, 2, 1, 1, 2, accepting=True, round=0))
    assert leader.group.commit == 2
    assert not beat(leader).sleep
    leader.hear(AppendResponse(0, 3, 1, 1, 2, accepting=True, round=0))
    assert beat(leader).sleep


def test_envelope_of_an_earlier_incarnation_is_ignored() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.run(300)
    cluster.kill(3)
    cluster.start(3)
    cluster.run(300)
    ghost = Heartbeat(0, 3, 2, 9, 0, 0, sleep=False)
    cluster.hosts[2].receive(Envelope(3, 2, 1, [ghost]), cluster.now_ms)
    assert cluster.group(2, 0).term < 9
    cluster.hosts[2].receive(Envelope(3, 2, 2, [ghost]), cluster.now_ms)
    assert cluster.group(2, 0).term == 9


def test_paused_leader_that_wakes_up_does_not_act_on_a_lease_it_lost() -> None:
    cluster = Cluster(groups=3)
    cluster.elect(1)
    cluster.run(300)
    assert cluster.hosts[1].lease_index(0, cluster.now_ms) == 1
    cluster.paused.add(1)
    cluster.run(5 * ELECTION_MS)
    assert cluster.leader(0) != 1
    cluster.paused.clear()
    assert cluster.hosts[1].lease_index(0, cluster.now_ms) is None
    cluster.run(2 * ELECTION_MS)
    assert {cluster.group(1, group).role for group in cluster.groups} == {Role.FOLLOWER}


def test_paused_sleeping_leader_learns_that_it_was_replaced() -> None:
    cluster = Cluster(groups=3)
    cluster.elect(1)
    cluster.sleep()
    cluster.paused.add(1)
    cluster.run(5 * ELECTION_MS)
    cluster.paused.clear()
    cluster.run(2 * ELECTION_MS)
    for group in cluster.groups:
        assert cluster.group(1, group).leader == cluster.leader(group) != 1


def test_paused_follower_that_wakes_up_listens_before_it_campaigns() -> None:
    cluster = Cluster(groups=3)
    cluster.elect(1)
    cluster.run(300)
    cluster.paused.add(3)
    cluster.run(5 * ELECTION_MS)
    cluster.sent.clear()
    cluster.paused.clear()
    cluster.poll(3)
    assert cluster.hosts[3].nodes_alive == {1, 2}, "it was not listening; that nobody was heard means nothing"
    cluster.run(ELECTION_MS - 1)
    assert not [
        message for envelope in cluster.sent for message in envelope.messages if isinstance(message, VoteRequest)
    ]
    assert {cluster.group(3, group).leader for group in cluster.groups} == {1}


def test_clock_that_falls_gives_up_leases_and_time_goes_on_from_where_it_was() -> None:
    cluster = Cluster(nodes=1, groups=1)
    cluster.run(1_000)
    host = cluster.hosts[1]
    assert host.lease_index(0, cluster.now_ms) == 1
    fallen_ms = cluster.now_ms - 700
    ticket = host.propose(0, EntryKind.DATA, [b"x"], fallen_ms + 50, fallen_ms)
    host.poll(fallen_ms)
    assert isinstance(ticket, int)
    deadline = host.next_deadline_ms()
    assert deadline is not None
    assert fallen_ms <= deadline <= fallen_ms + 100, "by the caller's clock"
    work = host.poll(fallen_ms + 60)
    assert [answer for _, effects in work.groups for answer in effects.answers if isinstance(answer, Refused)]


def test_clock_that_falls_ends_the_lease() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.run(300)
    host = cluster.hosts[1]
    assert host.lease_index(0, cluster.now_ms) == 1
    host.poll(cluster.now_ms - 5_000)
    assert host.lease_index(0, cluster.now_ms - 5_000) is None


def test_removed_group_answers_what_is_open_and_is_gone() -> None:
    cluster = Cluster(groups=2)
    cluster.elect(1)
    ticket = propose(cluster, 1, 0)
    effects = cluster.hosts[1].remove(0, cluster.now_ms)
    assert [(answer.ticket, answer.refusal.reason) for answer in effects.answers if isinstance(answer, Refused)] == [
        (ticket, Reason.LEADERSHIP_LOST)
    ]
    host = cluster.hosts[1]
    host.receive(Envelope(2, 1, 1, [Heartbeat(0, 2, 1, 9, 0, 0, sleep=False)]), cluster.now_ms)
    host.written(0, cluster.now_ms)
    host.hard_state_written(0, HardState(9), cluster.now_ms)
    assert not [effects for _, effects in host.poll(cluster.now_ms).groups if effects.answers]
    with pytest.raises(KeyError):
        host.group(0)


def test_group_is_added_once() -> None:
    cluster = Cluster(groups=1)
    with pytest.raises(ConfigurationError, match="already"):
        cluster.hosts[1].add(0, MemoryLog(), HardState(), [(0, cluster.members)], 0)


def test_node_with_which_nothing_is_shared_any_more_is_not_spoken_to() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.run(300)
    assert cluster.hosts[1].nodes_alive == {2, 3}
    cluster.hosts[1].remove(0, cluster.now_ms)
    assert cluster.hosts[1].nodes_alive == frozenset()
    assert not cluster.hosts[1].poll(cluster.now_ms + 500).envelopes


def test_broken_connection_is_told_to_the_groups_led_from_here() -> None:
    cluster = Cluster(groups=2)
    cluster.elect(1)
    cluster.run(300)
    propose(cluster, 1, 0)
    cluster.hosts[1].poll(cluster.now_ms)
    cluster.hosts[1].peer_unreachable(2, cluster.now_ms)
    cluster.hosts[1].peer_unreachable(9, cluster.now_ms)
    again = cluster.hosts[1].poll(cluster.now_ms).envelopes
    assert [(envelope.destination, len(envelope.messages)) for envelope in again] == [(2, 1)]


def fail_over_ms(cluster: Cluster, node: int) -> list[int]:
    """Kill a node, whose connections break at once; how long each of its groups is without a leader."""
    killed_ms = cluster.now_ms
    missing = {group for group in cluster.groups if cluster.leader(group) == node}
    cluster.kill(node)
    for host in cluster.hosts.values():
        host.peer_unreachable(node, cluster.now_ms)
    took: list[int] = []
    while missing and cluster.now_ms < killed_ms + 10 * ELECTION_MS:
        cluster.run(1)
        found = {group for group in missing if any(cluster.group(n, group).role is Role.LEADER for n in cluster.hosts)}
        took += [cluster.now_ms - killed_ms] * len(found)
        missing -= found
    assert not missing
    return took


@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_broken_connection_to_the_leader_ends_the_wait_soon_after_the_promise(asleep: bool) -> None:
    cluster = Cluster(groups=40)
    cluster.elect(1)
    cluster.run(330)
    if asleep:
        cluster.sleep()
    took = fail_over_ms(cluster, 1)
    earliest_ms = ELECTION_MS - SETTINGS.heartbeat_ms
    assert min(took) > earliest_ms, "no promise is shortened"
    assert sum(ms <= ELECTION_MS * 5 // 4 + 2 * BUCKET_MS for ms in took) >= 30, sorted(took)


def test_broken_connection_leaves_the_promise_and_the_chance_as_they_are() -> None:
    node = Lone(log_of_terms(1))
    node.hear(heartbeat(1))
    heard_ms = node.now_ms
    for ms in (0, 100, 100):
        node.now_ms += ms
        node.group.peer_unreachable(3, node.now_ms)
    first = node.group.next_deadline_ms
    assert first is not None
    assert first >= heard_ms + ELECTION_MS, "node 3 does not lead"
    deadlines: set[int | None] = set()
    for _ in range(20):
        node.group.peer_unreachable(2, node.now_ms)
        deadlines.add(node.group.next_deadline_ms)
    assert len(deadlines) == 1, "told again, it does not draw again"
    deadline = deadlines.pop()
    assert deadline is not None
    assert heard_ms + ELECTION_MS * 17 // 16 <= deadline <= heard_ms + ELECTION_MS * 5 // 4
    node.now_ms = heard_ms + ELECTION_MS - 1
    assert not only(VoteResponse, node.hear(vote_request(2, (1, 1), source=3, pre=True))).granted
    node.hear(heartbeat(1))
    late = node.group.next_deadline_ms
    assert late is not None
    assert late >= node.now_ms + ELECTION_MS, "the leader is there after all"


def test_connection_that_breaks_long_after_the_promise_leaves_rivals_apart() -> None:
    hurried: set[int] = set()
    for seed in range(20):
        node = Lone(log_of_terms(1), seed=seed)
        node.hear(heartbeat(1))
        before = node.group.next_deadline_ms
        late_ms = node.now_ms + ELECTION_MS * 3 // 2
        node.group.peer_unreachable(2, late_ms)
        after = node.group.next_deadline_ms
        assert before is not None
        assert after is not None
        if before > late_ms + ELECTION_MS // 4:
            assert late_ms + ELECTION_MS // 16 <= after <= late_ms + ELECTION_MS // 4
            hurried.add(after)
        else:
            assert after == before
    assert len(hurried) > 1


def test_who_would_vote_for_another_lets_it_try_first() -> None:
    node = Lone(log_of_terms(1))
    node.hear(heartbeat(1))
    node.group.peer_unreachable(2, node.now_ms)
    before = node.group.next_deadline_ms
    assert before is not None
    node.now_ms = before - 1
    assert only(VoteResponse, node.hear(vote_request(2, (1, 1), source=3, pre=True))).granted
    assert node.group.next_deadline_ms == node.now_ms + ELECTION_MS // 4
    node.now_ms += ELECTION_MS // 4
    node.group.tick(node.now_ms)
    assert node.group.role is Role.PRE_CANDIDATE


# A new group


def test_first_leader_of_a_new_group_wins_without_time_passing() -> None:
    cluster = Cluster(groups=1)
    cluster.hosts[2].campaign(0, cluster.now_ms)
    cluster.turn()
    assert cluster.leader(0) == 2


def test_first_leader_asks_again_soon_while_the_others_do_not_have_the_group_yet() -> None:
    cluster = Cluster(groups=1)
    for node in (2, 3):
        cluster.hosts[node].remove(0, cluster.now_ms)
    cluster.hosts[1].campaign(0, cluster.now_ms)
    cluster.run(120)
    assert cluster.group(1, 0).role is Role.PRE_CANDIDATE
    log, hard_state = cluster.disks[3, 0]
    cluster.hosts[3].add(0, log, hard_state, log.configurations(), cluster.now_ms)
    cluster.run(2 * SETTINGS.heartbeat_ms + BUCKET_MS)
    assert cluster.group(1, 0).role is Role.LEADER


def test_first_leader_asks_often_only_a_few_times_and_only_in_a_group_that_never_had_one() -> None:
    def asked(node: Lone) -> int:
        node.group.campaign(node.now_ms)
        count = len(every(VoteRequest, node.take()))
        for _ in range(100):
            node.now_ms += SETTINGS.heartbeat_ms
            node.group.tick(node.now_ms)
            count += len(every(VoteRequest, node.take()))
        return count // 2

    long_ms = 100 * SETTINGS.heartbeat_ms
    assert asked(Lone(log_of_terms(1))) <= long_ms // ELECTION_MS + 1
    patient = 1 + (long_ms - 2 * FIRST_ATTEMPTS_MAX * SETTINGS.heartbeat_ms) // (2 * ELECTION_MS)
    assert FIRST_ATTEMPTS_MAX + patient <= asked(Lone()) <= FIRST_ATTEMPTS_MAX + 1 + long_ms // ELECTION_MS


# Members, as the leader sees them


def test_leader_tells_what_it_knows_of_its_members() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    propose(cluster, 1, 0)
    cluster.run(300)
    cluster.kill(3)
    propose(cluster, 1, 0)
    cluster.run(120)
    own, near, far = cluster.hosts[1].members(0, cluster.now_ms)
    assert own == MemberView(1, 3, 0, voter=True, learner=False, accepting=True)
    assert (near.node, near.match, near.voter, near.learner, near.accepting) == (2, 3, True, False, True)
    assert near.heard_ms_ago <= SETTINGS.heartbeat_ms
    assert (far.node, far.match, far.voter) == (3, 2, True)
    assert 120 <= far.heard_ms_ago <= 120 + SETTINGS.heartbeat_ms
    assert cluster.hosts[2].members(0, cluster.now_ms) == [], "it does not lead"


def test_members_of_a_sleeping_group_are_heard_through_their_nodes() -> None:
    cluster = Cluster(groups=1)
    cluster.elect(1)
    cluster.sleep()
    cluster.run(5_000)
    assert max(view.heard_ms_ago for view in cluster.hosts[1].members(0, cluster.now_ms)) <= SETTINGS.heartbeat_ms
    cluster.kill(3)
    cluster.run(200)
    propose(cluster, 1, 0)  # wakes it, and a woken leader holds everyone for just heard
    assert cluster.hosts[1].members(0, cluster.now_ms)[2].heard_ms_ago >= 200


def test_member_that_learns_or_is_full_or_leaves_is_seen_as_such() -> None:
    leader = Lone(configuration=Configuration((1, 2), outgoing=(1, 2, 3), learners=(3, 4)))
    leader.lead()
    leader.hear(AppendResponse(GROUP, 2, 1, 1, 0, accepting=False, round=0))
    views = {view.node: view for view in leader.group.members(leader.now_ms)}
    assert [(node, view.voter, view.learner, view.accepting) for node, view in sorted(views.items())] == [
        (1, True, False, True),
        (2, True, False, False),
        (3, True, True, True),
        (4, False, True, True),
    ]
    leader.log.accepting = False
    assert not leader.group.members(leader.now_ms)[0].accepting


# Timers


def test_timers_fire_no_earlier_than_the_deadline_and_at_most_a_bucket_later() -> None:
    timers = Timers()
    timers.arm(1, 101)
    timers.arm(2, 110)
    timers.arm(3, 111)
    assert timers.next_ms() == 110
    assert timers.due(109) == []
    assert timers.due(110) == [1, 2]
    assert timers.due(119) == []
    assert timers.due(120) == [3]
    assert len(timers) == 0


def test_timers_hold_a_group_once_move_it_only_forward_and_forget_it_when_disarmed() -> None:
    timers = Timers()
    timers.arm(1, 5_000)
    timers.arm(1, 9_000)
    assert timers.next_ms() == 5_000, "later is lazy: it is asked again when it comes up"
    timers.arm(1, 1_000)
    assert (timers.next_ms(), len(timers)) == (1_000, 1)
    timers.disarm(1)
    timers.disarm(1)
    assert len(timers) == 0
    assert timers.due(10_000) == []
    assert BUCKET_MS == 10
