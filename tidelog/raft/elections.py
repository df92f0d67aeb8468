"""The parts of an election: how long a node waits for its leader, what it promises it meanwhile, and a candidacy.

`Group` decides when which of them acts; its opening lists the rules.
"""

from random import Random

from tidelog.raft.messages import VoteRequest
from tidelog.raft.quorum import VoteResult, quorum_vote
from tidelog.raft.replica import Replica

HURRY_STEPS = 16
"""Of an election timeout; whose turn it is to campaign waits one, the next three, and so on."""
YIELD_PART = 4
"""A node stays out of the way of another that may win for this part of an election timeout."""


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

    def hurry(self, now_ms: int, rank: int) -> None:
        """The connection to the leader broke, so it is probably gone: campaign soon after the promise ends.

        Not at once, since the others' promises end a little earlier or later; and one after the other, by `rank`, since
        rivals that meet cost each other an election timeout.
        """
        since_ms = max(self.promised_until_ms, now_ms)
        step_ms = max(1, self._election_timeout_ms // HURRY_STEPS)
        first_ms = since_ms + (1 + 2 * rank) * step_ms
        if self.deadline_ms > first_ms + step_ms:
            self.deadline_ms = first_ms + self._rng.randrange(step_ms)

    def yield_way(self, now_ms: int) -> None:
        """Another may win an election now: do not get in its way."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self._election_timeout_ms // YIELD_PART)

    def retry_soon(self, now_ms: int, wait_ms: int) -> None:
        """Ask again after `wait_ms` to twice that."""
        self.deadline_ms = now_ms + wait_ms + self._rng.randrange(wait_ms)

    def release(self, now_ms: int) -> None:
        """The leader itself is known to lead no more."""
        self.promised_until_ms = now_ms


class Candidacy:
    """One attempt to be elected, or (`pre`) to learn whether one would be.

    It begins by asking every other voter, unless `owned`: then the term is this node's own, and all have voted for it.
    """

    __slots__ = ("_replica", "_votes", "owned", "pre", "term")

    def __init__(self, replica: Replica, term: int, *, pre: bool, forced: bool, owned: bool = False) -> None:
        self._replica = replica
        self.term = term
        self.pre = pre
        self.owned = owned
        self._votes: dict[int, bool] = {}
        last_index = replica.log.last_index
        last_term = replica.log.term_at(last_index)
        configuration = replica.membership.in_force
        others = sorted({*configuration.voters, *configuration.outgoing} - {replica.node})
        if owned:
            self._votes.update(dict.fromkeys(others, True))
            return
        for node in others:
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
