"""The leader's side of replication: every member's progress, what to send it next, and what a quorum has reached.

Sending is lazy: events only note that there may be something to send (`unsent`), and `send` makes the messages when the
group's effects are taken. So all proposals of one turn leave in one append for each follower, with the newest commit
index. Followers that are equally far share the entries, which are read once.

Cost: O(members) a turn and O(1) an answer, plus the entries that are sent.
"""

from collections.abc import Sequence

from tidelog.raft.log import Entry
from tidelog.raft.messages import AppendRejected, AppendRequest, AppendResponse, HeartbeatResponse, TakeOver
from tidelog.raft.progress import Progress, State
from tidelog.raft.quorum import quorum_reached
from tidelog.raft.replica import Replica


class Replication:
    __slots__ = ("_incoming", "_outgoing", "_replica", "_slice", "followers", "members", "own", "unsent")

    def __init__(self, replica: Replica, now_ms: int) -> None:
        self._replica = replica
        self.own = Progress(replica.node, replica.log.last_index + 1, now_ms)
        """The leader's own: `match` is what it has on stable storage. It counts only if the leader is a voter."""

        self.members: dict[int, Progress] = {replica.node: self.own}
        """Every member of the configuration in force, and always the leader itself."""

        self.followers: list[Progress] = []
        """The members but the leader."""

        self._incoming: list[Progress] = []
        self._outgoing: list[Progress] = []
        """The voters of the configuration in force."""

        self.unsent = True
        """There may be something to send."""

        self._slice: tuple[int, Sequence[Entry], int] = (0, (), 0)
        """The entries read last in this turn: (first index, entries, bytes)."""

        self.reconfigure(now_ms)

    def reconfigure(self, now_ms: int) -> None:
        """The configuration in force has changed."""
        configuration = self._replica.membership.in_force
        known = self.members
        self.members = {self._replica.node: self.own}
        for node in sorted(configuration.members - {self._replica.node}):
            self.members[node] = known.get(node) or Progress(node, self._replica.log.last_index, now_ms)
        self.followers = [member for member in self.members.values() if member is not self.own]
        self._incoming = [self.members[node] for node in configuration.voters]
        self._outgoing = [self.members[node] for node in configuration.outgoing]
        self.unsent = True

    # What a quorum has reached

    def quorum_match(self) -> int:
        """The largest index that a quorum has on stable storage."""
        return quorum_reached([voter.match for voter in self._incoming], [voter.match for voter in self._outgoing])

    def quorum_round(self) -> int:
        """The newest round that a quorum has answered."""
        return quorum_reached([voter.round for voter in self._incoming], [voter.round for voter in self._outgoing])

    def quorum_heard_ms(self) -> int:
        """The last time since when a quorum has been heard from."""
        return quorum_reached(
            [voter.heard_ms for voter in self._incoming], [voter.heard_ms for voter in self._outgoing]
        )

    def best_successor(self) -> Progress | None:
        """The voter, other than the leader, that is furthest; None if it does not hold the whole log."""
        rivals = [voter for voter in self._incoming if voter is not self.own]
        best = max(rivals, key=lambda voter: voter.match, default=None)
        return best if best is not None and best.match == self._replica.log.last_index else None

    # Answers

    def acknowledged(self, member: Progress, response: AppendResponse) -> bool:
        """Says whether `match` moved."""
        moved = member.acknowledged(response.match)
        if response.accepting != member.accepting:
            member.accepting = response.accepting
            member.probe(member.match + 1)
        if member.state is not State.REPLICATE and member.accepting and response.match >= member.next - 1:
            member.replicate(member.match + 1)
        if member.next <= self._replica.log.last_index:
            self.unsent = True
        return moved

    def rejected(self, member: Progress, response: AppendRejected) -> None:
        """The logs part before `previous_index`. Step back past all that cannot match, on either side, at once."""
        stale = response.previous_index <= member.match
        if member.state is State.PROBE:
            stale = stale or response.previous_index != member.next - 1
        if stale or member.state is State.TAKEOVER:
            return
        log = self._replica.log
        meet = min(response.hint_index, response.previous_index - 1, log.last_index)
        if meet >= log.first_index - 1:
            meet = log.last_index_of_term_at_most(meet, response.hint_term)
        member.probe(meet + 1)
        self.unsent = True

    def heartbeat_answered(self, member: Progress, response: HeartbeatResponse) -> bool:
        """Says whether `match` moved. Repairs what was lost: a gap that outlives a heartbeat is one."""
        moved = member.acknowledged(response.match)
        if response.accepting != member.accepting:
            member.accepting = response.accepting
            member.probe(member.match + 1)
        elif response.round >= member.append_round:
            if member.state is not State.REPLICATE and response.verified >= member.next - 1:
                member.replicate(response.verified + 1)
            elif member.state is not State.REPLICATE:
                member.probe(member.next)
            elif response.verified < member.next - 1:
                member.probe(response.verified + 1)
        self.unsent = True
        return moved

    def unreachable(self, node: int) -> None:
        """What is on its way to the node is lost."""
        member = self.members.get(node)
        if member is None or member is self.own:
            return
        if member.state is not State.REPLICATE:
            member.probe(member.next)
        elif member.next > member.match + 1:
            member.probe(member.match + 1)
        self.unsent = True

    # Sending

    def send(self, round_: int) -> None:
        """Send every follower what its window allows."""
        self.unsent = False
        for member in self.followers:
            self._send_to(member, round_)
        self._slice = (0, (), 0)

    def _send_to(self, member: Progress, round_: int) -> None:
        replica = self._replica
        log = replica.log
        last_index = log.last_index
        while member.accepting:
            first = member.next
            if first > last_index and member.state is State.REPLICATE:
                return
            entries_max, bytes_max = member.room(replica.settings)
            if entries_max == 0:
                return
            if first < log.first_index:
                self._send_takeover(member, round_)
                return
            entries, size = self._read(first, min(last_index, first + entries_max - 1), bytes_max)
            replica.outbox.send(
                AppendRequest(
                    replica.group,
                    replica.node,
                    member.node,
                    replica.term,
                    first - 1,
                    log.term_at(first - 1),
                    entries,
                    replica.commit,
                    round_,
                )
            )
            member.sent(first + len(entries) - 1, size, round_)

    def _read(self, first: int, last: int, bytes_max: int) -> tuple[Sequence[Entry], int]:
        if first > last:
            return (), 0
        known_first, entries, size = self._slice
        if known_first == first and size <= bytes_max and first + len(entries) - 1 <= last:
            return entries, size
        entries = self._replica.log.entries(first, last, bytes_max)
        size = sum([len(entry.data) for entry in entries])
        self._slice = (first, entries, size)
        return entries, size

    def _send_takeover(self, member: Progress, round_: int) -> None:
        replica = self._replica
        index = replica.log.first_index - 1
        configuration_index, configuration = replica.membership.base
        replica.outbox.send(
            TakeOver(
                replica.group,
                replica.node,
                member.node,
                replica.term,
                index,
                replica.log.term_at(index),
                configuration_index,
                configuration,
                replica.log.takeover_context(),
                round_,
            )
        )
        member.take_over(round_)
