"""One group on one node: the state machine that takes events and gives effects.

Whatever crosses roles is here: terms, elections, who is heard. What a node does once it leads is in `leader`, what it
does once it is led in `follower`. The rules of this file:

* No message is acted upon before its term is settled (`_settle_term`): an older one changes nothing, and its sender is
  told; a newer one makes this node a follower of that term first.
* A term or vote is durable before anything is said in it (`outbox`); the node's own vote counts from then on.
* A node that hears from a leader promises it patience: for an election timeout it takes no part in an election, not
  even by learning its term. Leases rest on this (`reads`). Having restarted, it cannot know what it had promised, so
  it is patient with whoever it was. The promise does not hold against the leader itself: it may ask for votes
  (then it leads no more), or have asked another to (`forced`).
* To campaign, a node first asks whether it would win (PreVote). One that cannot win raises nobody's term.
* Whether a node may vote is the candidate's business, whose configuration may be newer than ours; whether it may
  campaign is its own. With one exception: a newcomer, whose log did not name it yet since it began, grants no vote. It
  may have been a voter whose disk was lost, and have forgotten what it voted and held; a candidate that has not heard
  of its removal could win with it and undo what is committed. That a later configuration names it is not enough: its
  log must reach that one, so that no such candidate's log is as long. Who is to become a voter is first made a learner,
  and holds that (`leader`), so nobody waits for a newcomer's vote. Nor does a node vote that knows itself removed.

A group may sleep, when a host watches over its nodes (`host`): then it has no deadline, and a follower's promise to its
leader lasts until it is woken.

Time is an integer of milliseconds that never falls. It must be a clock that also counts while the machine is suspended.
"""

from collections.abc import Callable, Sequence, Set
from random import Random
from typing import Any

from tidelog.raft.configuration import Change, Configuration
from tidelog.raft.effects import FOUNDED, Effects, HardState, Leadership, MemberView, Reason, Refusal, Role
from tidelog.raft.elections import Candidacy, Patience, is_up_to_date
from tidelog.raft.errors import RaftInvariantError
from tidelog.raft.follower import Follower
from tidelog.raft.leader import Leader
from tidelog.raft.log import Buffer, EntryKind, Log
from tidelog.raft.membership import Membership
from tidelog.raft.messages import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TakeOver,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tidelog.raft.quorum import VoteResult
from tidelog.raft.replica import Replica
from tidelog.raft.settings import TERM_MAX, RaftSettings

_FROM_LEADER = (AppendRequest, Heartbeat, TakeOver)
_TO_LEADER = (AppendResponse, AppendRejected, HeartbeatResponse)

FIRST_ATTEMPTS_MAX = 10
"""How often the first leader of a new group asks in quick succession; then it waits like anyone."""


class Group:
    """See the package's documentation for how it is driven."""

    __slots__ = (
        "_asleep",
        "_candidacy",
        "_first_attempts",
        "_follower",
        "_handlers",
        "_leader",
        "_leading",
        "_newcomer",
        "_now_ms",
        "_patience",
        "_replica",
        "_reported_commit",
        "_reported_configuration_index",
        "_reported_leadership",
    )

    def __init__(
        self,
        group: int,
        node: int,
        log: Log,
        hard_state: HardState,
        configurations: Sequence[tuple[int, Configuration]],
        settings: RaftSettings,
        rng: Random,
        now_ms: int,
        alive: Set[int] | None = None,
    ) -> None:
        """`configurations`: the one in force where the log begins, and every one in the log, with their indexes.

        A replica that begins blank in a group that lives is to be told the last committed configuration it can know, in
        place of the first: what its log says of earlier ones, and perhaps of itself, is then history.
        """
        self._replica = Replica(group, node, log, hard_state, Membership(configurations), settings, alive)
        self._now_ms = now_ms

        self._leader: int | None = None
        """Whom this node knows to lead the term."""

        self._follower = Follower(self._replica)
        """What is verified against the leader of this term; a new one for each term."""

        self._candidacy: Candidacy | None = None
        """Exists while, and only while, this node campaigns."""

        self._leading: Leader | None = None
        """Exists while, and only while, this node leads."""

        self._newcomer = not self._replica.membership.names(node, log.last_index)
        """Its log did not name it yet. Once it has, that is so also when a take-over begins its log anew."""

        self._asleep = False

        self._first_attempts = 0
        """How often `campaign` is still to be tried again soon."""

        self._patience = Patience(settings.election_timeout_ms, rng, now_ms)
        if hard_state.term > 0:
            self._patience.promise(now_ms)  # it may have promised, and forgotten
        configuration = self._replica.membership.in_force
        if configuration.voters == (node,) and not configuration.joint:
            self._patience.deadline_ms = now_ms  # it promised nobody but itself

        self._reported_commit = 0
        self._reported_leadership = Leadership(Role.FOLLOWER, hard_state.term, None)
        self._reported_configuration_index = -1

        self._handlers: dict[type[Any], Callable[[Any, int], None]] = {
            AppendRequest: self._on_append,
            AppendResponse: self._on_append_response,
            AppendRejected: self._on_append_rejected,
            Heartbeat: self._on_heartbeat,
            HeartbeatResponse: self._on_heartbeat_response,
            VoteRequest: self._on_vote_request,
            VoteResponse: self._on_vote_response,
            TakeOver: self._on_take_over,
            TimeoutNow: self._on_timeout_now,
        }

    # State

    @property
    def group(self) -> int:
        return self._replica.group

    @property
    def role(self) -> Role:
        if self._leading is not None:
            return Role.LEADER
        if self._candidacy is None:
            return Role.FOLLOWER
        return Role.PRE_CANDIDATE if self._candidacy.pre else Role.CANDIDATE

    @property
    def term(self) -> int:
        return self._replica.term

    @property
    def leader(self) -> int | None:
        return self._leader

    @property
    def commit(self) -> int:
        return self._replica.commit

    @property
    def configuration(self) -> Configuration:
        """The configuration in force."""
        return self._replica.membership.in_force

    @property
    def committed_configuration(self) -> tuple[int, Configuration]:
        """The last configuration known to be committed, and its index: what a newcomer begins with."""
        return self._replica.membership.base

    @property
    def ready(self) -> bool:
        """This node leads, and an entry of its term is committed: it may serve reads."""
        return self._leading is not None and self._leading.ready

    @property
    def asleep(self) -> bool:
        return self._asleep

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called next; None while asleep."""
        if self._asleep:
            return None
        return self._patience.deadline_ms if self._leading is None else self._leading.next_deadline_ms

    def lease_index(self, now_ms: int) -> int | None:
        """The index a read may be served at, right now and without asking anyone; None if only `read` can tell."""
        if self._leading is None or not self._leading.lease_holds(now_ms):
            return None
        return self._replica.commit

    def members(self, now_ms: int) -> list[MemberView]:
        """While this node leads: every member, itself first. Of sleeping ones `Host.members` knows more."""
        return [] if self._leading is None else self._leading.members(now_ms)

    # Requests: a ticket, answered once in the effects; or a refusal, at once

    def propose(self, kind: EntryKind, data: Sequence[Buffer], deadline_ms: int, now_ms: int) -> int | Refusal:
        """Append entries, one for each of `data`, and learn when they are committed."""
        leading = self._attend(now_ms)
        return leading.propose(kind, data, deadline_ms, now_ms) if leading else self._not_leader()

    def read(self, deadline_ms: int, now_ms: int) -> int | Refusal:
        """Learn an index such that a read there sees everything acknowledged before now."""
        leading = self._attend(now_ms)
        return leading.read(deadline_ms, now_ms) if leading else self._not_leader()

    def change_membership(self, changes: Sequence[Change], deadline_ms: int, now_ms: int) -> int | Refusal:
        """Change members; answered when the last step is committed.

        Add a new node as learner, and promote it when it has caught up: a voter with an empty log is a dead voter.
        """
        leading = self._attend(now_ms)
        return leading.change_membership(changes, deadline_ms, now_ms) if leading else self._not_leader()

    def transfer_leadership(self, target: int, now_ms: int) -> Refusal | None:
        """Ask another voter to lead. Whether it came to pass shows in `Effects.leadership`."""
        leading = self._attend(now_ms)
        return leading.transfer(target, now_ms) if leading else self._not_leader()

    def campaign(self, now_ms: int) -> None:
        """Do not wait for the election timeout; for the first leader of a new group. Harmless if there is one.

        In a group that never had a leader it is tried again soon, a few times: others may not have the group yet.
        """
        self._now_ms = now_ms
        self._first_attempts = FIRST_ATTEMPTS_MAX if self._replica.term == 0 else 0
        if self._leading is None and now_ms >= self._patience.promised_until_ms:
            self._election_due(now_ms)

    def found(self, now_ms: int) -> None:
        """Lead term 1 of a new group, which is this node's by agreement: no election is needed, nor could one be won.

        All other members begin with `FOUNDED`, so they neither vote in term 1 nor ask for votes in it. A founder that
        forgot that it led would lead the term again with another log; so it is one only as long as no term of it is
        stored, and its vote for itself is durable before it says a word. Having restarted, it is a member like any.
        """
        replica = self._replica
        if replica.term or replica.log.last_index or replica.membership.in_force.joint:
            raise RaftInvariantError(f"group {self.group}: not new in term {replica.term}, so nobody can found it")
        self._now_ms = now_ms
        if self._may_campaign():
            self._follow(FOUNDED.term, None, now_ms)
            replica.persist(FOUNDED.term, replica.node)
            self._candidacy = Candidacy(replica, FOUNDED.term, pre=False, forced=False, owned=True)

    def announce(self, now_ms: int) -> None:
        """Have the followers told at once what is committed, if this node leads, and not with the next heartbeat."""
        leading = self._attend(now_ms)
        if leading is not None:
            leading.announce()

    # Events

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._asleep:
            return
        if self._leading is not None:
            self._leading.tick(now_ms)
            self._after_leading(now_ms)
        elif now_ms >= self._patience.deadline_ms:
            self._election_due(now_ms)

    def receive(self, message: Message, now_ms: int) -> None:
        self._now_ms = now_ms
        if message.term == self._replica.term or self._settle_term(message, now_ms):
            self._handlers[type(message)](message, now_ms)

    def written(self, now_ms: int) -> None:
        """The log's `durable_index` has moved."""
        self._now_ms = now_ms
        if self._leading is not None:
            self._leading.written(now_ms)
            self._after_leading(now_ms)

    def hard_state_written(self, hard_state: HardState, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._replica.outbox.persisted(hard_state) and self._candidacy is not None and not self._candidacy.pre:
            self._voted(self._candidacy, self._replica.node, True, now_ms)

    def peer_unreachable(self, node: int, now_ms: int) -> None:
        """The connection to a node broke: what was sent to it may be lost."""
        self._now_ms = now_ms
        if self._leading is not None:
            self._leading.replication.unreachable(node)
        elif node == self._leader:
            self._patience.hurry(now_ms, self._rank_without(node))

    def _rank_without(self, leader: int) -> int:
        """Whose turn it is to lead after a leader that is gone: another voter's for each group, so they spread."""
        others = [voter for voter in self._replica.membership.in_force.voters if voter != leader]
        if self._replica.node not in others:
            return len(others)
        return (others.index(self._replica.node) + self.group) % len(others)

    def clock_leapt(self, now_ms: int) -> None:
        """Time has passed in a way that this node cannot account for: it was suspended, or its clock was set.

        So no lease may rest on its clock, and promises are renewed: how much of them is left is not known.
        """
        self._now_ms = now_ms
        self._asleep = False
        if self._leading is not None:
            self._leading.distrust_clock(now_ms)
        else:
            self._patience.promise(now_ms)

    def wake(self, heard_ms: int, now_ms: int) -> None:
        """The host has news of a member's node. To a follower it is its leader's node, last heard at `heard_ms`."""
        leading = self._attend(now_ms)
        if leading is not None:
            leading.stir(now_ms)
        elif self._asleep:
            self._asleep = False
            self._patience.promise(heard_ms)

    def close(self) -> Effects:
        """This node lets go of the group: refuse all that is unanswered, and say no more."""
        if self._leading is not None:
            self._leading.close(Reason.LEADERSHIP_LOST, None)
        return Effects(answers=self._replica.take_answers())

    @property
    def quiet(self) -> bool:
        """This node leads, and `take_effects` would give nothing: whatever happened last had no consequences."""
        leading, replica = self._leading, self._replica
        return (
            leading is not None
            and replica.commit == self._reported_commit
            and not replica.answers
            and not leading.has_something_to_say
            and not replica.outbox.has_messages
        )

    def take_effects(self) -> Effects:
        replica = self._replica
        if self._leading is not None:
            self._leading.flush(self._now_ms)
        else:
            self._follower.flush()
        effects = Effects(messages=replica.outbox.take_messages())
        if replica.outbox.to_persist is not None:
            effects.hard_state = replica.outbox.take_hard_state()
        if replica.answers:
            effects.answers = replica.take_answers()
        if replica.commit != self._reported_commit:
            effects.commit = self._reported_commit = replica.commit
        role = self.role
        reported = self._reported_leadership
        if reported.role is not role or reported.term != replica.term or reported.leader != self._leader:
            effects.leadership = self._reported_leadership = Leadership(role, replica.term, self._leader)
        membership = replica.membership
        if membership.in_force_index != self._reported_configuration_index:
            self._reported_configuration_index = membership.in_force_index
            effects.configuration = (membership.in_force_index, membership.in_force)
        return effects

    # Terms

    def _settle_term(self, message: Message, now_ms: int) -> bool:
        """For a message of another term. Says whether it is to be handled, now that terms agree."""
        if isinstance(message, VoteRequest):
            return True  # it may have to be refused without learning its term
        if message.term < self._replica.term:
            if isinstance(message, _FROM_LEADER):
                self._tell_term(message.source)
            return False
        if message.term > TERM_MAX:
            return False
        if isinstance(message, VoteResponse) and message.pre and message.granted:
            return True  # its term is the one asked for, which is nobody's yet
        leading = self._leading
        if isinstance(message, _TO_LEADER) and leading and message.source not in leading.replication.members:
            return False  # a removed node has no say about terms
        self._follow(message.term, message.source if isinstance(message, _FROM_LEADER) else None, now_ms)
        return True

    def _follow(self, term: int, leader: int | None, now_ms: int) -> None:
        if self._leading is not None:
            self._leading.close(Reason.LEADERSHIP_LOST, leader)
            self._leading = None
        if term > self._replica.term:
            self._replica.persist(term, None)
            self._follower = Follower(self._replica)
        self._candidacy = None
        self._leader = leader
        self._asleep = False
        self._patience.restart(now_ms)

    def _heed_leader(self, message: AppendRequest | Heartbeat | TakeOver, now_ms: int) -> None:
        """The leader of this term spoke."""
        if self._leader != message.source:
            if self._leading is not None:
                raise RaftInvariantError(
                    f"group {self.group}: nodes {self._replica.node} and {message.source} both lead term {self.term}"
                )
            self._follow(self._replica.term, message.source, now_ms)
        self._asleep = False
        self._patience.heard(now_ms)

    def _tell_term(self, node: int) -> None:
        """Tell the leader of an earlier term that it is over."""
        replica = self._replica
        replica.outbox.send(
            HeartbeatResponse(replica.group, replica.node, node, replica.term, 0, 0, replica.log.accepting, False, 0)
        )

    # Elections

    def _election_due(self, now_ms: int) -> None:
        self._follow(self._replica.term, None, now_ms)
        if self._may_campaign():
            self._candidacy = Candidacy(self._replica, self._replica.term + 1, pre=True, forced=False)
            if self._first_attempts > 0 and self._replica.term == 0:
                self._first_attempts -= 1
                self._patience.retry_soon(now_ms, self._replica.settings.heartbeat_ms)
            self._voted(self._candidacy, self._replica.node, True, now_ms)

    def _may_campaign(self) -> bool:
        """A leader must be able to append: its first act is a no-op."""
        return self._replica.membership.may_lead(self._replica.node) and self._replica.log.accepting

    def _campaign(self, now_ms: int, *, forced: bool) -> None:
        """Ask for votes in the next term; this node's own follows when it is durable."""
        if self._replica.term >= TERM_MAX:
            raise RaftInvariantError(f"group {self.group}: there is no term after {TERM_MAX}")
        self._follow(self._replica.term + 1, None, now_ms)
        self._replica.persist(self._replica.term, self._replica.node)
        self._candidacy = Candidacy(self._replica, self._replica.term, pre=False, forced=forced)

    def _voted(self, candidacy: Candidacy, node: int, granted: bool, now_ms: int) -> None:
        result = candidacy.voted(node, granted)
        if result is VoteResult.PENDING:
            return
        if result is VoteResult.LOST or not self._replica.log.accepting:
            self._follow(self._replica.term, None, now_ms)
        elif candidacy.pre:
            self._campaign(now_ms, forced=False)
        else:
            self._candidacy = None
            self._leader = self._replica.node
            self._leading = Leader(self._replica, now_ms, founding=candidacy.owned)

    def _on_vote_request(self, request: VoteRequest, now_ms: int) -> None:
        replica = self._replica
        if request.source == self._leader and request.term > replica.term:
            self._forget_leader(now_ms)  # an older request of its own would be from before it led
        if request.term < replica.term or not self._has_a_vote():
            self._answer_vote(request, granted=False)
            return
        if not request.forced and self._is_patient(now_ms):
            if self._leading is not None and request.source in self._leading.replication.members:
                self._attend(now_ms)  # a member has lost sight of its leader
            if request.pre or request.term == replica.term:
                self._answer_vote(request, granted=False)
            return
        if request.pre:
            granted = request.term > replica.term and is_up_to_date(request, replica)
            if granted:
                self._patience.yield_way(now_ms)
            self._answer_vote(request, granted=granted)
            return
        if request.term > replica.term:
            if request.term > TERM_MAX:
                return
            self._follow(request.term, None, now_ms)
        granted = replica.vote in (None, request.source) and self._leader is None and is_up_to_date(request, replica)
        if granted and replica.vote is None:
            replica.persist(replica.term, request.source)
            self._patience.restart(now_ms)
        self._answer_vote(request, granted=granted)

    def _has_a_vote(self) -> bool:
        membership, node = self._replica.membership, self._replica.node
        if self._newcomer:
            self._newcomer = not membership.names(node, self._replica.log.last_index)
        return not self._newcomer and membership.names(node, membership.in_force_index)

    def _is_patient(self, now_ms: int) -> bool:
        """Bound to a leader: to itself, to one that sleeps, or by promise."""
        return self._leading is not None or self._asleep or now_ms < self._patience.promised_until_ms

    def _forget_leader(self, now_ms: int) -> None:
        """Who led asks for votes: it leads no more, so nothing that was promised to it binds."""
        self._leader = None
        self._patience.release(now_ms)
        if self._asleep:
            self._asleep = False
            self._patience.restart(now_ms)

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        replica = self._replica
        term = request.term if granted else replica.term
        replica.outbox.send(VoteResponse(replica.group, replica.node, request.source, term, granted, request.pre))

    def _on_vote_response(self, response: VoteResponse, now_ms: int) -> None:
        candidacy = self._candidacy
        if candidacy is None or candidacy.pre != response.pre:
            return
        if response.granted and response.term != candidacy.term:
            return  # for an earlier candidacy
        self._voted(candidacy, response.source, response.granted, now_ms)

    def _on_timeout_now(self, message: TimeoutNow, now_ms: int) -> None:
        if self._leader in (None, message.source) and self._may_campaign():
            self._campaign(now_ms, forced=True)

    # Being led

    def _on_append(self, message: AppendRequest, now_ms: int) -> None:
        self._heed_leader(message, now_ms)
        self._follower.append(message)

    def _on_heartbeat(self, message: Heartbeat, now_ms: int) -> None:
        self._heed_leader(message, now_ms)
        self._asleep = self._follower.heartbeat(message, may_sleep=self._replica.alive is not None)

    def _on_take_over(self, message: TakeOver, now_ms: int) -> None:
        self._heed_leader(message, now_ms)
        self._follower.take_over(message)

    # Leading

    def _on_append_response(self, message: AppendResponse, now_ms: int) -> None:
        leading = self._attend(now_ms)
        if leading is not None:
            leading.append_answered(message, now_ms)
            self._after_leading(now_ms)

    def _on_append_rejected(self, message: AppendRejected, now_ms: int) -> None:
        leading = self._attend(now_ms)
        if leading is not None:
            leading.append_rejected(message, now_ms)

    def _on_heartbeat_response(self, message: HeartbeatResponse, now_ms: int) -> None:
        leading = self._leading if message.sleeping else self._attend(now_ms)
        if leading is not None:
            leading.heartbeat_answered(message, now_ms)
            self._after_leading(now_ms)

    def _attend(self, now_ms: int) -> Leader | None:
        """Something for the leader, if this node is it: it has to be awake."""
        self._now_ms = now_ms
        if self._asleep and self._leading is not None:
            self._asleep = False
            self._leading.wake(now_ms)
        return self._leading

    def _not_leader(self) -> Refusal:
        return Refusal(Reason.NOT_LEADER, self._leader)

    def _after_leading(self, now_ms: int) -> None:
        leading = self._leading
        if leading is None:
            return
        if leading.resigned:
            self._follow(self._replica.term, None, now_ms)
        elif leading.sleep_agreed:
            self._asleep = True
