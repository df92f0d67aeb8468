"""The configurations a node knows of one group, from the last committed one on.

A configuration is in force from the moment its entry is in the log, committed or not (Raft thesis 4.1); if the entry is
truncated, the one before it is in force again. So this is a stack whose bottom, the base, is known to be committed:

    the base's index < every other index, ascending; the top is in force.

The base may be newer than the log (after a take-over, or when a newcomer is told it): a committed fact, merely learned
early. What the log says up to the base's index is history, and does not count. The stack's depth is bounded by the
leader's rule of one uncommitted change at a time, except right after a start, when all that is known is the log.
"""

from collections.abc import Iterable

from tidelog.raft.configuration import Configuration
from tidelog.raft.errors import ConfigurationError


class Membership:
    __slots__ = ("_stack", "in_force", "in_force_index")

    def __init__(self, configurations: Iterable[tuple[int, Configuration]]) -> None:
        """The base first, then those found in the log, ascending."""
        known = list(configurations)
        if not known:
            raise ConfigurationError("a group needs a configuration to begin with")
        self._stack = [known[0], *(later for later in known[1:] if later[0] > known[0][0])]
        self._enforce_top()

    @property
    def base(self) -> tuple[int, Configuration]:
        """The last configuration known to be committed, and its index."""
        return self._stack[0]

    def may_lead(self, node: int) -> bool:
        """Whether the node has a vote in any of them.

        One that the newest configuration leaves out may be the only one whose log holds it. Until it knows that it is
        committed, it must be able to lead to that end (thesis 4.2.2); it does not count itself.
        """
        return any(configuration.votes(node) for _, configuration in self._stack)

    def names(self, node: int, last_index: int) -> bool:
        """Whether any of them that is at or before `last_index` has the node as a member."""
        return any(index <= last_index and node in configuration.members for index, configuration in self._stack)

    def appended(self, index: int, configuration: Configuration) -> None:
        if index > self.in_force_index:
            self._stack.append((index, configuration))
            self._enforce_top()

    def truncated_from(self, index: int) -> None:
        while len(self._stack) > 1 and self._stack[-1][0] >= index:
            self._stack.pop()
        self._enforce_top()

    def committed(self, index: int) -> None:
        while len(self._stack) > 1 and self._stack[1][0] <= index:
            del self._stack[0]

    def taken_over(self, index: int, configuration: Configuration) -> None:
        """The log begins anew, and this configuration is committed, wherever the log stands."""
        self._stack = [(index, configuration)]
        self._enforce_top()

    def _enforce_top(self) -> None:
        self.in_force_index, self.in_force = self._stack[-1]
