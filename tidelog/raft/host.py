"""All groups of one node: one set of timers, one envelope a peer, and sleep for groups that have nothing to do.

**Batching.** Events only mark their group as touched. `poll` fires what is due and takes the effects of the touched
groups; all their messages to one node leave in one envelope. A poll costs O(due + touched + peers), whatever the number
of groups.

**Sleep.** A leader whose followers all hold and know committed the whole log, with nothing to do for a while, proposes
to sleep (`Heartbeat.sleep`). A follower that agrees sleeps at once; the leader sleeps when every follower *whose node
lives* has agreed and these, with itself, are a quorum. A group that sleeps has no deadline and sends nothing. In its
stead the nodes watch each other: every node sends every peer at least an empty envelope each heartbeat interval.

What wakes a group:

1. a request, and any message, except a vote request that a sleeping follower refuses out of patience (a node that
   merely lost sight of the leader must not wake the followers, who would miss heartbeats that nobody sends);
2. at a follower: the leader's node is silent for an election timeout, or has restarted, or its connection broke. It
   wakes as if it had heard from the leader when that node was last heard, so elections are no slower than without
   sleep, and as scattered;
3. at a leader: a member's node falls silent, comes (back), or has restarted;
4. everywhere: the clock leapt, so that nobody knows what was missed; when the group is next touched, which it is if
   anybody has something to tell it. (Nodes whose silence this node slept through are listened to anew.)

Why nobody sleeps for ever:

* The leader stops leading. It then is an awake follower with a timer, which asks for votes, from the sleepers too; a
  request for a later term by the very node they believe in makes them forget it (`Group`). If it was removed, that took
  entries, and entries wake. If its node died, rule 2.
* A follower's word is lost, or the leader's. Whoever is awake goes on: a leader sends heartbeats until all have agreed.
* A dead follower is counted as absent and keeps nobody awake; rule 3 brings it up to date when it returns. If the dead
  are too many, the leader cannot sleep, and CheckQuorum ends its term.

Why sleep is safe: it decides nothing. A sleeping follower's patience only makes elections rarer; a sleeping leader's
lease runs out by its own clock, and a read then wakes it to ask.

**Clock.** `now_ms` should never fall; a host notices when it does, or when it leaps ahead by more than a busy process
explains (a suspended one looks the same), and has its groups distrust it. Inside, time never falls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tidelog.raft.configuration import Change, Configuration
from tidelog.raft.effects import Effects, HardState, MemberView, Refusal
from tidelog.raft.errors import ConfigurationError
from tidelog.raft.group import Group
from tidelog.raft.log import Buffer, EntryKind, Log
from tidelog.raft.messages import AppendResponse, Envelope, Message
from tidelog.raft.peers import News, Peer, Peers
from tidelog.raft.settings import NEVER_MS, RaftSettings
from tidelog.raft.timers import Timers


@dataclass(slots=True)
class Work:
    """What there is to do for a whole node."""

    envelopes: list[Envelope] = field(default_factory=list[Envelope])
    groups: list[tuple[int, Effects]] = field(default_factory=list[tuple[int, Effects]])
    """Effects of groups that have any beside messages; the messages are in the envelopes."""


class Host:
    """`incarnation` must be larger at each start of the node."""

    def __init__(self, node: int, incarnation: int, settings: RaftSettings, rng: Random, now_ms: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._settings = settings
        self._rng = rng
        self._groups: dict[int, Group] = {}
        self._touched: dict[int, Group] = {}
        self._shared: dict[int, frozenset[int]] = {}
        """Group -> the other nodes it is shared with."""
        self._timers = Timers()
        self._peers = Peers(settings.election_timeout_ms)
        self._now_ms = now_ms
        """The time inside, which never falls."""
        self._clock_offset_ms = 0
        """What to add to the caller's clock to get the time inside."""
        self._clock_fell = False
        self._leaps = 0
        """How often the clock leapt."""
        self._leaps_known: dict[int, int] = {}
        """Group -> how many of them it was told of. They are told when they are next touched or due, not at once: a
        node that is late because it is busy would be busier still, and later the next time."""
        self._poll_due_ms = now_ms
        """When the last poll asked for the next one, at the latest."""

    @property
    def groups_awake(self) -> int:
        """How many groups have a timer."""
        return len(self._timers)

    @property
    def nodes_alive(self) -> frozenset[int]:
        return frozenset(self._peers.alive)

    @property
    def has_work(self) -> bool:
        """Something has happened since the last poll that the next one has to look at."""
        return bool(self._touched)

    def group(self, group: int) -> Group:
        return self._groups[group]

    def next_deadline_ms(self) -> int | None:
        """When to poll next at the latest, by the caller's clock; None: when something happens."""
        if self._touched:
            return self._now_ms - self._clock_offset_ms
        return None if self._poll_due_ms == NEVER_MS else self._poll_due_ms - self._clock_offset_ms

    # Groups

    def add(
        self,
        group: int,
        log: Log,
        hard_state: HardState,
        configurations: Sequence[tuple[int, Configuration]],
        now_ms: int,
    ) -> Group:
        if group in self._groups:
            raise ConfigurationError(f"group {group} is on this node already")
        now_ms = self._now(now_ms)
        made = Group(
            group, self._node, log, hard_state, configurations, self._settings, self._rng, now_ms, self._peers.alive
        )
        self._groups[group] = self._touched[group] = made
        self._leaps_known[group] = self._leaps
        self._shared[group] = frozenset()
        return made

    def remove(self, group: int, now_ms: int) -> Effects:
        """Let go of a group. Its last effects refuse all that is unanswered."""
        gone = self._groups.pop(group)
        self._touched.pop(group, None)
        del self._leaps_known[group]
        self._timers.disarm(group)
        self._peers.share(group, self._shared.pop(group), (), self._now(now_ms))
        return gone.close()

    # Requests, as on Group

    def propose(
        self, group: int, kind: EntryKind, data: Sequence[Buffer], deadline_ms: int, now_ms: int
    ) -> int | Refusal:
        now_ms = self._now(now_ms)  # first: it may move the offset
        return self._touch(group).propose(kind, data, deadline_ms + self._clock_offset_ms, now_ms)

    def read(self, group: int, deadline_ms: int, now_ms: int) -> int | Refusal:
        now_ms = self._now(now_ms)
        return self._touch(group).read(deadline_ms + self._clock_offset_ms, now_ms)

    def lease_index(self, group: int, now_ms: int) -> int | None:
        now_ms = self._now(now_ms)
        return self._told(group).lease_index(now_ms)

    def members(self, group: int, now_ms: int) -> list[MemberView]:
        """As `Group.members`; and a node that is not heard does not hide behind a group that sleeps, or just woke."""
        now_ms = self._now(now_ms)
        asleep = self._groups[group].asleep
        views: list[MemberView] = []
        for view in self._groups[group].members(now_ms):
            peer = self._peers.get(view.node)
            node_ms_ago = 0 if peer is None else now_ms - peer.heard_ms
            views.append(replace(view, heard_ms_ago=node_ms_ago if asleep else max(view.heard_ms_ago, node_ms_ago)))
        return views

    def change_membership(self, group: int, changes: Sequence[Change], deadline_ms: int, now_ms: int) -> int | Refusal:
        now_ms = self._now(now_ms)
        return self._touch(group).change_membership(changes, deadline_ms + self._clock_offset_ms, now_ms)

    def transfer_leadership(self, group: int, target: int, now_ms: int) -> Refusal | None:
        now_ms = self._now(now_ms)
        return self._touch(group).transfer_leadership(target, now_ms)

    def campaign(self, group: int, now_ms: int) -> None:
        now_ms = self._now(now_ms)
        self._touch(group).campaign(now_ms)

    def found(self, group: int, now_ms: int) -> None:
        now_ms = self._now(now_ms)
        self._touch(group).found(now_ms)

    def announce(self, group: int, now_ms: int) -> None:
        now_ms = self._now(now_ms)
        self._touch(group).announce(now_ms)

    # Events

    def receive(self, envelope: Envelope, now_ms: int) -> None:
        now_ms = self._now(now_ms)
        peer = self._peers.get(envelope.source)
        if peer is not None:
            news = self._peers.heard(peer, envelope.incarnation)
            if news is News.GHOST:
                return
            if news is not News.NONE:
                self._wake_groups(peer, now_ms)
            peer.heard_ms = now_ms
        groups = self._groups
        touched = self._touched
        for message in envelope.messages:
            group = groups.get(message.group)
            if group is not None:
                if self._leaps_known[message.group] != self._leaps:
                    self._told(message.group)
                asleep = group.asleep
                group.receive(message, now_ms)
                # The last of three to acknowledge an entry changes nothing: what is committed already stays so.
                if type(message) is not AppendResponse or asleep or not group.quiet:
                    touched[message.group] = group

    def written(self, group: int, now_ms: int) -> None:
        """The `durable_index` of the group's log has moved."""
        if group in self._groups:
            told = self._told(group)
            told.written(self._now(now_ms))
            if not told.quiet:  # the leader's own disk is often the first of three, and decides nothing yet
                self._touched[group] = told

    def hard_state_written(self, group: int, hard_state: HardState, now_ms: int) -> None:
        if group in self._groups:
            self._touch(group).hard_state_written(hard_state, self._now(now_ms))

    def peer_unreachable(self, node: int, now_ms: int) -> None:
        """The connection to a node broke: what was sent to it may be lost."""
        now_ms = self._now(now_ms)
        peer = self._peers.get(node)
        if peer is None:
            return
        for group_id in peer.groups:
            group = self._told(group_id)
            if group.leader == node:
                group.wake(peer.heard_ms, now_ms)
            if group.leader in (node, self._node):
                self._touched[group_id] = group
                group.peer_unreachable(node, now_ms)

    def poll(self, now_ms: int) -> Work:
        now_ms = self._now(now_ms)
        self._check_clock(now_ms)
        for peer in self._peers.take_silent(now_ms):
            self._wake_groups(peer, now_ms)
        if self._timers.next_ms() <= now_ms:
            self._tick_due(now_ms)
        return self._take_work(now_ms)

    def _tick_due(self, now_ms: int) -> None:
        for group_id in self._timers.due(now_ms):
            group = self._told(group_id)
            deadline_ms = group.next_deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                group.tick(now_ms)
                self._touched[group_id] = group
            elif deadline_ms is not None:
                self._timers.arm(group_id, deadline_ms)

    def _take_work(self, now_ms: int) -> Work:
        work = Work()
        letters: dict[int, list[Message]] = {}
        touched, self._touched = self._touched, {}
        for group_id, group in touched.items():
            effects = group.take_effects()
            if effects.messages:
                for message in effects.messages:
                    letters.setdefault(message.destination, []).append(message)
                effects.messages = ()
            if effects:
                work.groups.append((group_id, effects))
                if effects.leadership is not None or effects.configuration is not None:
                    self._share(group, now_ms)
            deadline_ms = group.next_deadline_ms
            if deadline_ms is None:
                self._timers.disarm(group_id)
            else:
                self._timers.arm(group_id, deadline_ms)
        heartbeat_ms = self._settings.heartbeat_ms
        due_ms = self._timers.next_ms()
        for peer in self._peers.all():
            messages = letters.pop(peer.node, ()) if letters else ()
            if messages or now_ms - peer.spoken_ms >= heartbeat_ms:
                peer.spoken_ms = now_ms
                work.envelopes.append(Envelope(self._node, peer.node, self._incarnation, messages))
            if peer.spoken_ms + heartbeat_ms < due_ms:
                due_ms = peer.spoken_ms + heartbeat_ms
        for node, messages in letters.items():  # nodes with which nothing is shared any more
            work.envelopes.append(Envelope(self._node, node, self._incarnation, messages))
        self._poll_due_ms = due_ms
        return work

    def _touch(self, group: int) -> Group:
        touched = self._told(group)
        self._touched[group] = touched
        return touched

    def _told(self, group_id: int) -> Group:
        """The group, which knows that the clock leapt."""
        group = self._groups[group_id]
        if self._leaps_known[group_id] != self._leaps:
            self._leaps_known[group_id] = self._leaps
            group.clock_leapt(self._now_ms)
        return group

    def _share(self, group: Group, now_ms: int) -> None:
        """Whose life matters to a group: its members', and its leader's, who may not be one yet as far as we know."""
        nodes = group.configuration.members | ({group.leader} if group.leader is not None else set[int]())
        after = nodes - {self._node}
        self._peers.share(group.group, self._shared[group.group], after, now_ms)
        self._shared[group.group] = after

    def _wake_groups(self, peer: Peer, now_ms: int) -> None:
        """A node fell silent, came or restarted: groups that it leads here, or that are led from here, must know."""
        for group_id in peer.groups:
            group = self._told(group_id)
            if group.leader in (peer.node, self._node):
                self._touched[group_id] = group
                group.wake(peer.heard_ms, now_ms)

    # Clock

    def _now(self, now_ms: int) -> int:
        inside_ms = now_ms + self._clock_offset_ms
        if inside_ms >= self._now_ms:
            self._now_ms = inside_ms
        else:
            self._clock_offset_ms += self._now_ms - inside_ms
            self._clock_fell = True
        return self._now_ms

    def _check_clock(self, now_ms: int) -> None:
        """Whether the clock fell, or this poll is later than a busy process explains."""
        late_ms = now_ms - self._poll_due_ms
        if not self._clock_fell and late_ms <= self._settings.election_timeout_ms // 2:
            return
        self._clock_fell = False
        self._leaps += 1
        self._peers.excuse(now_ms)
