"""The parts of an election: how long a node waits for its leader, what it promises it meanwhile, and a candidacy.

`Group` decides when which of them acts; its opening lists the rules.
"""

from random import Random

from tidelog.raft.messages import VoteRequest
from tidelog.raft.quorum import VoteResult, quorum_vote
from tidelog.raft.replica import Replica

HURRY_PART = 4
"""A quarter of the election timeout is what a node adds to its promise at most, when it knows its leader to be gone."""


class Patience:
    """What a node that does not lead waits for, in time.

    promised_until_ms <= deadline_ms, unless the leader itself released it from the promise: no node breaks its own
    promise by campaigning.
    """

    __slots__ = ("_election_timeout_ms", "_rng", "_wait_ms", "deadline_ms", "promised_until_ms")

    def __init__(self, election_timeout_ms: int, rng: Random, now_ms: int) -> None:
        self._election_timeout_ms = election_timeout_ms
        self._rng = rng

        self._wait_ms = 0
        """How long this time, from [1x, 2x) of the election timeout."""

        self.deadline_ms = 0
        """When to campaign."""

        self.promised_until_ms = now_ms
        """Until then the node helps nobody to replace its leader."""

        self.restart(now_ms)

    def restart(self, since_ms: int) -> None:
        """Wait anew, for another random while from `since_ms` on."""
        self._wait_ms = self._election_timeout_ms + self._rng.randrange(self._election_timeout_ms)
        self.deadline_ms = since_ms + self._wait_ms

    def heard(self, now_ms: int) -> None:
        """The leader spoke: wait, and promise, once more."""
        self.deadline_ms = now_ms + self._wait_ms
        self.promised_until_ms = now_ms + self._election_timeout_ms

    def promise(self, since_ms: int) -> None:
        """As if the leader had spoken at `since_ms`; a promise is never shortened."""
        self.promised_until_ms = max(self.promised_until_ms, since_ms + self._election_timeout_ms)
        self.restart(since_ms)

    def hurry(self, now_ms: int) -> None:
        """The connection to the leader broke, so it is probably gone: campaign soon after the promise ends.

        Not at once: the others' promises end a little earlier or later, and rivals should not meet.
        """
        since_ms = max(self.promised_until_ms, now_ms)
        short_ms = self._election_timeout_ms // HURRY_PART
        if self.deadline_ms > since_ms + short_ms:
            self.deadline_ms = since_ms + self._rng.randint(short_ms // HURRY_PART, short_ms)

    def yield_way(self, now_ms: int) -> None:
        """Another may win an election now: do not get in its way."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self._election_timeout_ms // HURRY_PART)

    def retry_soon(self, now_ms: int, wait_ms: int) -> None:
        """Ask again after `wait_ms` to twice that."""
        self.deadline_ms = now_ms + wait_ms + self._rng.randrange(wait_ms)

    def release(self, now_ms: int) -> None:
        """The leader itself is known to lead no more."""
        self.promised_until_ms = now_ms


class Candidacy:
    """One attempt to be elected, or (`pre`) to learn whether one would be. It begins by asking every other voter."""

    __slots__ = ("_replica", "_votes", "pre", "term")

    def __init__(self, replica: Replica, term: int, *, pre: bool, forced: bool) -> None:
        self._replica = replica
        self.term = term
        self.pre = pre
        self._votes: dict[int, bool] = {}
        last_index = replica.log.last_index
        last_term = replica.log.term_at(last_index)
        configuration = replica.membership.in_force
        for node in sorted({*configuration.voters, *configuration.outgoing} - {replica.node}):
            request = VoteRequest(replica.group, replica.node, node, term, last_index, last_term, pre, forced)
            replica.outbox.send(request)

    def voted(self, node: int, granted: bool) -> VoteResult:
        """Whether the node is a voter is for the configuration in force to say, when votes are counted."""
        self._votes[node] = granted
        configuration = self._replica.membership.in_force
        return quorum_vote(configuration.voters, configuration.outgoing, self._votes)


def is_up_to_date(request: VoteRequest, replica: Replica) -> bool:
    """Raft 5.4.1: the later last term wins, among equals the longer log."""
    log = replica.log
    last_index = log.last_index
    return (request.last_term, request.last_index) >= (log.term_at(last_index), last_index)
