"""The leader of one term: it begins with an election won and ends with the step down; nothing of it survives.

It takes proposals, reads and membership changes, and answers each exactly once; at the latest in `close`.

Its rules, each with a test that fails without it:

* an index is committed when a quorum has it on stable storage (the leader itself included only up to what its own disk
  has) and it is of this term; earlier ones commit with it (Raft 5.4.2, figure 8);
* reads and membership changes wait until an entry of this term is committed: before that the leader does not know what
  is (thesis 6.4, 4.1);
* without word from a quorum for an election timeout it steps down (CheckQuorum);
* having told a follower to campaign, it gives up lease reads for the rest of the term: the word may arrive late;
* a leader that is no voter of the new configuration leads until that is committed, and does not count itself;
* a node becomes a voter only once its log names it as a learner: before, it grants no votes (`group`), and a group that
  needs the vote of one that cannot hear of itself without a leader would have none for ever.
"""

from collections.abc import Sequence

from tidelog.raft.configuration import Change, change, leave_joint
from tidelog.raft.effects import Committed, MemberView, Readable, Reason, Refusal
from tidelog.raft.errors import ConfigurationError, RaftInvariantError
from tidelog.raft.log import Buffer, EntryKind
from tidelog.raft.messages import AppendRejected, AppendResponse, Heartbeat, HeartbeatResponse, TimeoutNow
from tidelog.raft.progress import Progress, State
from tidelog.raft.proposals import Proposals
from tidelog.raft.quorum import VoteResult, quorum_vote
from tidelog.raft.reads import Reads, Rounds
from tidelog.raft.replica import Replica
from tidelog.raft.replication import Replication
from tidelog.raft.settings import NEVER_MS

_PROPOSABLE = (EntryKind.DATA, EntryKind.LOG_START, EntryKind.REMOTE)


class Leader:
    __slots__ = (
        "_active_ms",
        "_announcing",
        "_change_deadline_ms",
        "_change_ticket",
        "_founding",
        "_heartbeat_due_ms",
        "_lease_forfeited",
        "_log",
        "_proposals",
        "_reads",
        "_replica",
        "_sleep_round",
        "_transfer_deadline_ms",
        "_transfer_target",
        "replication",
        "resigned",
        "rounds",
        "term_start",
    )

    def __init__(self, replica: Replica, now_ms: int, *, founding: bool = False) -> None:
        """`founding`: nobody has heard of a leader yet, and somebody waits for the group to have one."""
        settings = replica.settings
        self._replica = replica
        self._log = replica.log

        self.term_start = replica.log.append_new(replica.term, EntryKind.NOOP, [b""])
        """Index of this term's first entry. From here on, and only from here on, every entry is of this term."""

        self.replication = Replication(replica, now_ms)
        self.rounds = Rounds()

        self.resigned = False
        """The leader should step down: it has lost its quorum, or its place among the voters."""

        self._proposals = Proposals(settings.proposals_max, settings.proposals_bytes_max)
        self._reads = Reads(settings.reads_max)

        self._change_ticket: int | None = None
        """The membership change that is under way, if it began in this term; answered when its last step commits."""
        self._change_deadline_ms = NEVER_MS

        self._transfer_target: int | None = None
        self._transfer_deadline_ms = NEVER_MS

        self._lease_forfeited = False
        """A TimeoutNow was sent: a follower may win an election at any moment, whatever others promised."""

        self._founding = founding
        # The first entry itself tells the members of a founded group; whoever has not got the group yet hears the next.
        self._heartbeat_due_ms = now_ms + settings.heartbeat_ms if founding else now_ms

        self._announcing = False
        """Something was committed that the followers are to know at once."""

        self._active_ms = now_ms - settings.sleep_after_ms if founding else now_ms
        """When there was last something to do. A new group, asked for nothing yet, may sleep when all know."""

        self._sleep_round = 0
        """First round of the present proposal to sleep; 0: none."""

        self.written(now_ms)

    # State

    @property
    def ready(self) -> bool:
        """An entry of this term is committed."""
        return self._replica.commit >= self.term_start

    @property
    def next_deadline_ms(self) -> int:
        return min(
            self._heartbeat_due_ms,
            self._proposals.deadline_ms,
            self._reads.deadline_ms,
            self._change_deadline_ms,
            self._transfer_deadline_ms,
        )

    def lease_holds(self, now_ms: int) -> bool:
        return (
            not self._lease_forfeited
            and self.ready
            and self.rounds.lease_holds(now_ms, self._replica.settings.lease_ms)
        )

    def members(self, now_ms: int) -> list[MemberView]:
        configuration = self._replica.membership.in_force
        views: list[MemberView] = []
        for member in self.replication.members.values():
            own = member is self.replication.own
            views.append(
                MemberView(
                    member.node,
                    member.match,
                    0 if own else now_ms - member.heard_ms,
                    configuration.votes(member.node),
                    member.node in configuration.learners,
                    self._log.accepting if own else member.accepting,
                )
            )
        return views

    # Requests

    def propose(self, kind: EntryKind, data: Sequence[Buffer], deadline_ms: int, now_ms: int) -> int | Refusal:
        if kind not in _PROPOSABLE or not data:
            raise ValueError(f"cannot propose {len(data)} entries of kind {kind!r}")
        if self._transfer_target is not None:
            return Refusal(Reason.TRANSFERRING, self._replica.node)
        if not self._log.accepting:
            return Refusal(Reason.STORAGE_FULL, self._replica.node)
        size = sum(map(len, data))
        if not self._proposals.has_room(size):
            return Refusal(Reason.BUSY, self._replica.node)
        ticket = self._replica.new_ticket()
        last_index = self._log.append_new(self._replica.term, kind, data)
        self._proposals.add(ticket, last_index, size, deadline_ms)
        self.replication.unsent = True
        self.stir(now_ms)
        return ticket

    def read(self, deadline_ms: int, now_ms: int) -> int | Refusal:
        if not self.ready:
            return Refusal(Reason.NOT_READY, self._replica.node)
        if not self._reads.has_room:
            return Refusal(Reason.BUSY, self._replica.node)
        ticket = self._replica.new_ticket()
        if self.lease_holds(now_ms):
            self._replica.answers.append(Readable(ticket, self._replica.commit))
        else:
            self._reads.add(ticket, self._replica.commit, self.rounds.current, deadline_ms)
            self.stir(now_ms)
        return ticket

    def change_membership(self, changes: Sequence[Change], deadline_ms: int, now_ms: int) -> int | Refusal:
        membership = self._replica.membership
        if self._transfer_target is not None:
            return Refusal(Reason.TRANSFERRING, self._replica.node)
        if not self.ready:
            return Refusal(Reason.NOT_READY, self._replica.node)
        if membership.in_force.joint or membership.in_force_index > self._replica.commit:
            return Refusal(Reason.CHANGE_PENDING, self._replica.node, str(membership.in_force))
        if not self._log.accepting:
            return Refusal(Reason.STORAGE_FULL, self._replica.node)
        try:
            target = change(membership.in_force, changes)
        except ConfigurationError as error:
            return Refusal(Reason.INVALID, self._replica.node, str(error))
        newcomers = [
            node for node in target.voters if node not in membership.in_force.voters and not self._is_learned(node)
        ]
        if newcomers:
            return Refusal(Reason.NOT_LEARNED, self._replica.node, f"nodes {newcomers}")
        ticket = self._replica.new_ticket()
        if target == membership.in_force:
            self._replica.answers.append(Committed(ticket, membership.in_force_index))
            return ticket
        self._change_ticket = ticket
        self._change_deadline_ms = deadline_ms
        self.stir(now_ms)
        self._replica.append_configuration(target)
        self.replication.reconfigure(now_ms)
        return ticket

    def _is_learned(self, node: int) -> bool:
        """Whether the node's log, on its disk, holds the configuration in force, which names it."""
        member = self.replication.members.get(node)
        return member is not None and member.match >= self._replica.membership.in_force_index

    def transfer(self, target: int, now_ms: int) -> Refusal | None:
        """Hand leadership to `target` as soon as it has the whole log; meanwhile no proposal is taken.

        It is given up after an election timeout, and not begun with a node that has been silent for as long: nothing
        would be gained by refusing proposals and changes of members meanwhile, such as the one that removes it.
        """
        if target == self._replica.node or target not in self._replica.membership.in_force.voters:
            return Refusal(Reason.INVALID, self._replica.node, f"node {target} is not another voter of this group")
        silent_ms = now_ms - self.replication.members[target].heard_ms
        if silent_ms >= self._replica.settings.election_timeout_ms:
            return Refusal(Reason.INVALID, self._replica.node, f"node {target} was not heard for {silent_ms} ms")
        self._transfer_target = target
        self._transfer_deadline_ms = now_ms + self._replica.settings.election_timeout_ms
        self.stir(now_ms)
        self._hand_over_if_caught_up()
        return None

    def close(self, reason: Reason, leader: int | None) -> None:
        """The end of this leadership: refuse all that is still unanswered."""
        replica = self._replica
        replica.refuse(self._proposals.abandoned(), reason, leader)
        replica.refuse(self._reads.abandoned(), reason, leader)
        if self._change_ticket is not None:
            replica.refuse([self._change_ticket], reason, leader)
            self._change_ticket = None

    # Time

    def tick(self, now_ms: int) -> None:
        self._expire(now_ms)
        if now_ms < self._heartbeat_due_ms:
            return
        self.replication.own.heard_ms = now_ms
        if self.replication.quorum_heard_ms() <= now_ms - self._replica.settings.election_timeout_ms:
            self.resigned = True
            return
        self._heartbeat_due_ms = now_ms + self._replica.settings.heartbeat_ms
        self._leave_joint(now_ms)
        self._hand_over_if_caught_up()
        self._ask(now_ms, sleep=self._may_sleep(now_ms))

    def announce(self) -> None:
        """Have the followers told now what is committed, and not with the next heartbeat."""
        self._announcing = True

    def stir(self, now_ms: int) -> None:
        """There is something to do: do not fall asleep, and take back a proposal to."""
        self._active_ms = now_ms
        self._sleep_round = 0

    def wake(self, now_ms: int) -> None:
        """After sleep, when nobody answered because nobody was asked: everyone is as good as just heard from."""
        self.stir(now_ms)
        for member in self.replication.followers:
            member.heard_ms = now_ms
        self._heartbeat_due_ms = now_ms

    def distrust_clock(self, now_ms: int) -> None:
        self.rounds.distrust_clock()
        self.wake(now_ms)

    @property
    def has_something_to_say(self) -> bool:
        """Whether `flush` would make messages."""
        return self.replication.unsent or self._announcing or self._needs_round

    @property
    def _needs_round(self) -> bool:
        return self._reads.needs_round(self.rounds.current) and not self.rounds.in_flight

    def flush(self, now_ms: int) -> None:
        """Make the messages that the events since the last time call for."""
        if self._announcing:
            self._ask(now_ms, sleep=self._may_sleep(now_ms))
            self._heartbeat_due_ms = now_ms + self._replica.settings.heartbeat_ms
        elif self._needs_round:
            self._ask(now_ms, sleep=False)
        if self.replication.unsent:
            self.replication.send(self.rounds.current)

    # The disk's and the followers' answers

    def written(self, now_ms: int) -> None:
        """The leader's own log became more durable."""
        if self.replication.own.acknowledged(self._log.durable_index):
            self._commit(now_ms)

    def append_answered(self, response: AppendResponse, now_ms: int) -> None:
        member = self._heard(response.source, response.round, now_ms)
        if member is not None and self.replication.acknowledged(member, response):
            self._matched(member, now_ms)

    def append_rejected(self, response: AppendRejected, now_ms: int) -> None:
        member = self._heard(response.source, response.round, now_ms)
        if member is not None:
            self.replication.rejected(member, response)

    def heartbeat_answered(self, response: HeartbeatResponse, now_ms: int) -> None:
        member = self._heard(response.source, response.round, now_ms)
        if member is None:
            return
        member.sleeping = response.sleeping and 0 < self._sleep_round <= response.round
        if self.replication.heartbeat_answered(member, response):
            self._matched(member, now_ms)

    @property
    def sleep_agreed(self) -> bool:
        """Every follower whose node lives sleeps, by the present proposal."""
        alive = self._replica.alive
        return (
            self._sleep_round > 0
            and alive is not None
            and all(member.sleeping or member.node not in alive for member in self.replication.followers)
        )

    def _heard(self, node: int, round_: int, now_ms: int) -> Progress | None:
        member = self.replication.members.get(node)
        if member is None:
            return None
        member.heard_ms = now_ms
        if round_ > member.round:
            if round_ > self.rounds.current:
                raise RaftInvariantError(
                    f"group {self._replica.group}: node {node} answers round {round_}, newest is {self.rounds.current}"
                )
            member.round = round_
            self._confirm()
        return member

    def _matched(self, member: Progress, now_ms: int) -> None:
        if member.match > self._replica.commit:
            self._commit(now_ms)
        if member.node == self._transfer_target:
            self._hand_over_if_caught_up()

    # Commit

    def _commit(self, now_ms: int) -> None:
        replica = self._replica
        index = self.replication.quorum_match()
        if index <= replica.commit or index < self.term_start:
            return
        if self._founding and not self.ready:
            self.announce()  # followers serve nothing before they know that something of this term is committed
        replica.advance_commit(index)
        replica.answers.extend(
            [Committed(ticket, last_index) for ticket, last_index in self._proposals.committed(index)]
        )
        if replica.membership.in_force_index <= index:
            self._configuration_committed(now_ms)

    def _configuration_committed(self, now_ms: int) -> None:
        membership = self._replica.membership
        if membership.in_force.joint:
            self._leave_joint(now_ms)
            return
        if self._change_ticket is not None:
            self._replica.answers.append(Committed(self._change_ticket, membership.in_force_index))
            self._change_ticket = None
            self._change_deadline_ms = NEVER_MS
        if self._replica.node not in membership.in_force.voters:
            self._resign()

    def _leave_joint(self, now_ms: int) -> None:
        """A joint configuration ends by itself once it is committed; a full disk may delay it."""
        membership = self._replica.membership
        if membership.in_force.joint and membership.in_force_index <= self._replica.commit and self._log.accepting:
            self._replica.append_configuration(leave_joint(membership.in_force))
            self.replication.reconfigure(now_ms)

    def _resign(self) -> None:
        self.resigned = True
        successor = self.replication.best_successor()
        if successor is not None:
            self._send_timeout_now(successor.node)

    # Rounds

    def _ask(self, now_ms: int, *, sleep: bool) -> None:
        """Begin a round: a heartbeat to everyone."""
        replica = self._replica
        self._announcing = False
        round_ = self.rounds.start(now_ms)
        if not sleep:
            self._sleep_round = 0
        elif self._sleep_round == 0:
            self._sleep_round = round_
            for member in self.replication.followers:
                member.sleeping = False
        for member in self.replication.followers:
            replica.outbox.send(
                Heartbeat(replica.group, replica.node, member.node, replica.term, replica.commit, round_, sleep)
            )
        self.replication.own.round = round_
        self._confirm()

    def _confirm(self) -> None:
        confirmed = self.replication.quorum_round()
        if confirmed > self.rounds.confirmed:
            self.rounds.confirm(confirmed)
            self._replica.answers.extend(Readable(ticket, index) for ticket, index in self._reads.confirmed(confirmed))

    # Transfer, deadlines, sleep

    def _hand_over_if_caught_up(self) -> None:
        if self._transfer_target is None:
            return
        target = self.replication.members.get(self._transfer_target)
        if target is not None and target.match == self._log.last_index:
            self._send_timeout_now(target.node)

    def _send_timeout_now(self, node: int) -> None:
        self._lease_forfeited = True
        self._replica.outbox.send(TimeoutNow(self._replica.group, self._replica.node, node, self._replica.term))

    def _expire(self, now_ms: int) -> None:
        replica = self._replica
        replica.refuse(self._proposals.expired(now_ms), Reason.TIMED_OUT, replica.node)
        replica.refuse(self._reads.expired(now_ms), Reason.TIMED_OUT, replica.node)
        if self._change_ticket is not None and now_ms >= self._change_deadline_ms:
            replica.refuse([self._change_ticket], Reason.TIMED_OUT, replica.node)
            self._change_ticket = None
            self._change_deadline_ms = NEVER_MS
        if now_ms >= self._transfer_deadline_ms:
            self._transfer_target = None
            self._transfer_deadline_ms = NEVER_MS

    def _may_sleep(self, now_ms: int) -> bool:
        """Everyone whose node lives has all there is, they are a quorum, and nothing has happened for a while."""
        replica = self._replica
        alive = replica.alive
        if alive is None or now_ms - self._active_ms < replica.settings.sleep_after_ms:
            return False
        last_index = self._log.last_index
        membership = replica.membership
        awake = {member.node: True for member in self.replication.followers if member.node in alive}
        awake[replica.node] = True
        return (
            replica.commit == last_index == self._log.durable_index
            and not self._proposals
            and not self._reads
            and self._transfer_target is None
            and not membership.in_force.joint
            and quorum_vote(membership.in_force.voters, (), awake) is VoteResult.WON
            and all(
                member.match == last_index and member.state is State.REPLICATE
                for member in self.replication.followers
                if member.node in alive
            )
        )
