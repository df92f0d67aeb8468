"""The follower's side of replication, for one term.

A follower trusts its log only as far as it has compared it with the log of this term's leader: `verified`. That is

* at least the commit index, since a leader has every committed entry (Raft 5.4, Leader Completeness);
* the end of every append that fitted, since logs with an equal entry are equal before it (Log Matching).

Only what is verified is acknowledged or committed, and only what is durable as well is acknowledged. Whatever an append
says about entries up to `verified` is old news and changes nothing; so a repeated or reordered append is harmless, and
nothing is truncated but at an entry that is proven to differ.
"""

from tidelog.raft.errors import RaftInvariantError
from tidelog.raft.messages import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    TakeOver,
)
from tidelog.raft.replica import Replica

_NOTHING = -1


class Follower:
    __slots__ = ("_acknowledged", "_leader", "_owed", "_replica", "_round", "verified")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

        self.verified = replica.commit
        """Up to here our log equals the leader's. Never falls within the term."""

        self._acknowledged = 0
        """The last match we told the leader."""

        self._owed = _NOTHING
        """The end of the longest append not fully acknowledged. Its acknowledgement waits for the disk."""

        self._round = 0
        """The leader's newest round."""

        self._leader = _NOTHING
        """Whom to answer."""

    @property
    def match(self) -> int:
        """Up to here our log equals the leader's, and is durable. Of a take-over not yet durable, nothing is."""
        log = self._replica.log
        durable = log.durable_index
        return min(self.verified, durable) if durable >= log.first_index - 1 else 0

    def append(self, request: AppendRequest) -> None:
        self._heard(request.source, request.round)
        replica = self._replica
        log = replica.log
        previous = request.previous_index
        entries = request.entries
        end = previous + len(entries)
        if previous < self.verified:
            entries = entries[self.verified - previous :]
        elif previous > self.verified and not self._holds(previous, request.previous_term):
            self._reject(request)
            return
        if entries and entries[0].index <= log.last_index:
            known = 0
            for entry in entries:
                if entry.index > log.last_index:
                    break
                if log.term_at(entry.index) != entry.term:
                    if log.accepting:
                        replica.truncate_from(entry.index)
                    break
                known += 1
            entries = entries[known:]
        if entries:
            if log.accepting:
                replica.append_received(entries)
            else:
                end -= len(entries)
        if end > self.verified:
            self.verified = end
        if end > self._owed:
            self._owed = end
        self.learn_commit(request.commit)

    def heartbeat(self, heartbeat: Heartbeat, may_sleep: bool) -> bool:
        """Answers it, and says whether the follower now sleeps."""
        newest = heartbeat.round >= self._round
        self._heard(heartbeat.source, heartbeat.round)
        self.learn_commit(heartbeat.commit)
        replica = self._replica
        log = replica.log
        sleeps = (
            may_sleep
            and heartbeat.sleep
            and newest
            and log.durable_index == log.last_index == self.verified == heartbeat.commit
            and replica.outbox.durable
        )
        replica.outbox.send(
            HeartbeatResponse(
                replica.group,
                replica.node,
                heartbeat.source,
                replica.term,
                self.match,
                self.verified,
                log.accepting,
                sleeps,
                heartbeat.round,
            )
        )
        return sleeps

    def take_over(self, message: TakeOver) -> None:
        self._heard(message.source, message.round)
        replica = self._replica
        index = message.index
        if index > replica.commit and not self._holds(index, message.log_term):
            replica.take_over(
                index, message.log_term, message.context, message.configuration_index, message.configuration
            )
        self.verified = max(self.verified, index)
        self._owed = max(self._owed, index)
        self.learn_commit(index)

    def learn_commit(self, leader_commit: int) -> None:
        """The leader's commit index may be ahead of what we hold, or of what of our log is known to be its log."""
        self._replica.advance_commit(min(leader_commit, self.verified))

    def flush(self) -> None:
        """Acknowledge what has become durable: once for all appends since the last time."""
        owed = self._owed
        if owed == _NOTHING:
            return
        replica = self._replica
        match = self.match
        if match < owed and match <= self._acknowledged:
            return
        if match >= owed:
            self._owed = _NOTHING
        self._acknowledged = match
        replica.outbox.send(
            AppendResponse(
                replica.group,
                replica.node,
                self._leader,
                replica.term,
                match,
                replica.log.accepting,
                self._round,
            )
        )

    def _heard(self, leader: int, round_: int) -> None:
        if self._leader != leader:
            if self._leader != _NOTHING:
                replica = self._replica
                raise RaftInvariantError(
                    f"group {replica.group}: nodes {self._leader} and {leader} both lead term {replica.term}"
                )
            self._leader = leader
        if round_ > self._round:
            self._round = round_

    def _holds(self, index: int, term: int) -> bool:
        log = self._replica.log
        return log.first_index - 1 <= index <= log.last_index and log.term_at(index) == term

    def _reject(self, request: AppendRequest) -> None:
        replica = self._replica
        log = replica.log
        hint = log.last_index_of_term_at_most(min(request.previous_index, log.last_index), request.previous_term)
        replica.outbox.send(
            AppendRejected(
                replica.group,
                replica.node,
                request.source,
                replica.term,
                request.previous_index,
                hint,
                log.term_at(hint),
                self._round,
            )
        )
