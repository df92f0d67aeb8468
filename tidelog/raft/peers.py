"""Which other nodes live: one watch for each node, instead of one for each group.

Every envelope of a node says that it lives, and in which incarnation. A node is alive from its first envelope until it
has been silent for an election timeout; an incarnation ends when a later one is heard of. What that means for groups is
the host's business.

Cost: O(1) an envelope, and a poll as long as nobody can be silent for too long yet, else O(peers).
"""

from collections.abc import Collection, Iterable
from enum import Enum

_UNHEARD = -1


class News(Enum):
    """What an envelope tells about its sender's node."""

    NONE = "it goes on living"
    CAME = "it was not known to live"
    RESTARTED = "it is another incarnation; what the earlier one knew, it may not"
    GHOST = "it is of an incarnation that has ended"


class Peer:
    """A node with which we share at least one group."""

    __slots__ = ("groups", "heard_ms", "incarnation", "node", "spoken_ms")

    def __init__(self, node: int, now_ms: int) -> None:
        self.node = node

        self.incarnation = _UNHEARD
        """The newest heard of."""

        self.heard_ms = now_ms
        """When it was last heard, or when we began to listen."""

        self.spoken_ms = now_ms
        """When it was last sent an envelope."""

        self.groups: dict[int, None] = {}
        """The groups we share with it. A dict for its order: the same events must give the same effects."""


class Peers:
    __slots__ = ("_by_node", "_patience_ms", "_silent_from_ms", "alive")

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._by_node: dict[int, Peer] = {}
        self._silent_from_ms = 0
        """Before this, nobody's silence can be too long: times of hearing only rise."""

        self.alive: set[int] = set()
        """The nodes that live, as a view that groups keep."""

    def all(self) -> Collection[Peer]:
        return self._by_node.values()

    def get(self, node: int) -> Peer | None:
        return self._by_node.get(node)

    def share(self, group: int, before: Iterable[int], after: Iterable[int], now_ms: int) -> None:
        """The nodes that a group is shared with have changed. A node with which nothing is shared is forgotten."""
        for node in after:
            if node not in self._by_node:
                self._by_node[node] = Peer(node, now_ms)
            self._by_node[node].groups[group] = None
        for node in set(before).difference(after):
            peer = self._by_node[node]
            peer.groups.pop(group, None)
            if not peer.groups:
                del self._by_node[node]
                self.alive.discard(node)

    def heard(self, peer: Peer, incarnation: int) -> News:
        """An envelope of the peer arrived. `heard_ms` is left to the caller, who may need the time before."""
        if incarnation < peer.incarnation:
            return News.GHOST
        restarted = peer.incarnation != _UNHEARD and incarnation > peer.incarnation
        peer.incarnation = incarnation
        if restarted:
            self.alive.add(peer.node)
            return News.RESTARTED
        if peer.node not in self.alive:
            self.alive.add(peer.node)
            return News.CAME
        return News.NONE

    def take_silent(self, now_ms: int) -> list[Peer]:
        """Those that have just been silent for too long; they do not live any more."""
        if now_ms < self._silent_from_ms:
            return []
        oldest_ms = min((peer.heard_ms for peer in self._by_node.values() if peer.node in self.alive), default=now_ms)
        self._silent_from_ms = max(now_ms, oldest_ms + self._patience_ms)
        silent = [
            peer
            for peer in self._by_node.values()
            if peer.node in self.alive and now_ms - peer.heard_ms >= self._patience_ms
        ]
        self.alive.difference_update(peer.node for peer in silent)
        return silent

    def excuse(self, now_ms: int) -> None:
        """We were not listening: nobody's silence counts."""
        for peer in self._by_node.values():
            peer.heard_ms = now_ms
