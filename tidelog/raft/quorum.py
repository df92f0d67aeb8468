"""The arithmetic of majorities, plain and joint.

Everything that needs "a quorum" is here, as pure functions, so that it is right once: commit indexes, read rounds,
time of last contact, votes. A quorum of a joint configuration is a majority of the incoming voters *and* a majority
of the outgoing ones (Raft thesis 4.3).

No voters at all agree to everything: they reach EVERYTHING and their vote is WON. That is what makes a plain
configuration the special case of a joint one whose outgoing half is empty. Real configurations have voters.

Cost: O(n log n) for n voters.
"""

from collections.abc import Collection, Mapping
from enum import Enum

EVERYTHING = 2**63 - 1


class VoteResult(Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority_size(voters: int) -> int:
    return voters // 2 + 1


def majority_reached(values: Collection[int]) -> int:
    """The largest number that a majority of the values reach.

    Ascending, place (n - 1) // 2 leaves n // 2 + 1 values at or above it, for odd and even n. (Place n // 2, often
    seen, leaves only half of them when n is even.)
    """
    return sorted(values)[(len(values) - 1) // 2] if values else EVERYTHING


def quorum_reached(incoming: Collection[int], outgoing: Collection[int]) -> int:
    """The largest number that a majority of both halves reach."""
    return min(majority_reached(incoming), majority_reached(outgoing)) if outgoing else majority_reached(incoming)


def majority_vote(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """How a vote stands. Votes of nodes that are no voters do not exist; a voter without a vote may yet say either."""
    needed = majority_size(len(voters))
    if not voters:
        return VoteResult.WON
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return VoteResult.WON
    if len(voters) - refused < needed:
        return VoteResult.LOST
    return VoteResult.PENDING


def quorum_vote(incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """Won when both halves are won, lost as soon as one of them is."""
    results = (majority_vote(incoming, votes), majority_vote(outgoing, votes))
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
