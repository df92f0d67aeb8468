"""Where replicas go: over data centres (racks) first, then over hosts, then where the least is. Pure and deterministic.

    place(…)          the replicas of new partitions
    replacement(…)    the node that takes over from one that leaves
    even_leaders(…)   who leads what, so that all lead alike

A replica is chosen greedily: of the racks that hold the fewest replicas of the partition, on the hosts that hold the
fewest, the node that holds the least. So a partition is in as many racks as there are, and nodes that are alike end
up within one replica of each other. What is still equal is decided by a mix of the partition's and the node's numbers,
so that the neighbours of a node are not always the same: when it dies, its work spreads over all others.

The cost is O(partitions x replication x nodes).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.cluster.state import DATA_ROLE, Node, Partition

_64_BITS = 2**64 - 1


def usable(nodes: Iterable[Node]) -> list[Node]:
    """Those that replicas may be placed on."""
    return [node for node in nodes if DATA_ROLE in node.roles and not node.draining]


def loads(partitions: Iterable[Partition]) -> tuple[dict[int, int], dict[int, int]]:
    """How many replicas each node shall hold, and how many streams it is preferred to lead."""
    load: dict[int, int] = defaultdict(int)
    leaders: dict[int, int] = defaultdict(int)
    for partition in partitions:
        for node in partition.replicas:
            load[node] += 1
        if partition.replicas:
            leaders[partition.replicas[0]] += 1
    return load, leaders


def place(
    nodes: Sequence[Node],
    load: Mapping[int, int],
    leaders: Mapping[int, int],
    partitions: int,
    replication: int,
    leader_rack: str | None = None,
) -> list[tuple[int, ...]]:
    """The replicas of new partitions, the preferred leader first.

    `load` and `leaders` are what nodes hold and lead already. Who is dead should be left out of `nodes`, draining nodes
    and those that hold no data are left out here. If `leader_rack` has a node, every partition is led from there.
    """
    choice = _Choice(usable(nodes), load)
    if not 1 <= replication <= len(choice.nodes):
        raise ValueError(
            f"replication {replication} is not possible: {len(choice.nodes)} nodes can take replicas"
            " (nodes that are draining or have no role 'data' are not counted)"
        )
    home = [node for node in choice.nodes.values() if leader_rack is not None and node.rack == leader_rack]
    placed: list[tuple[int, ...]] = []
    for number in range(partitions):
        chosen: list[int] = []
        for position in range(replication):
            candidates = home if home and position == 0 else choice.nodes.values()
            chosen.append(choice.take(chosen, candidates, number))
        placed.append(tuple(chosen))
    at_home = {node.node for node in home}
    return even_leaders([(replicas, _eligible(replicas, at_home)) for replicas in placed], leaders)


def replacement(
    nodes: Sequence[Node],
    load: Mapping[int, int],
    replicas: Sequence[int],
    leaving: int,
    alive: Collection[int],
    leader_rack: str | None = None,
) -> int | None:
    """The node that takes over from one that leaves, so that the rest and it are spread best; None: there is none.

    If no other replica is in `leader_rack`, one there is preferred.
    """
    choice = _Choice(usable(nodes), load)
    staying = [node for node in replicas if node != leaving]
    racks = {node.node: node.rack for node in nodes}
    candidates = [node for node in choice.nodes.values() if node.node in alive and node.node not in replicas]
    if leader_rack is not None and all(racks.get(node) != leader_rack for node in staying):
        candidates = [node for node in candidates if node.rack == leader_rack] or candidates
    if not candidates:
        return None
    for node in nodes:  # also those that nothing is placed on any more stand somewhere
        choice.places.setdefault(node.node, _place(node))
    return choice.best(staying, candidates, leaving)


def even_leaders(
    rows: Sequence[tuple[tuple[int, ...], Collection[int]]], leaders: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Each row's replicas with its leader in front: one that may lead, so that all nodes lead as evenly as they can.

    A row is the replicas, led by the first if it may, and those that may lead. `leaders` says what nodes lead besides.
    Leadership is handed on along shortest chains from those who lead most to those who lead at least two fewer, which
    ends with the most even spread there is (Harvey et al., Semi-matchings), and leaves most rows as they are.
    """
    count: dict[int, int] = defaultdict(int, leaders)
    led: dict[int, dict[int, None]] = defaultdict(dict)  # node: the rows it leads
    leader: list[int] = []
    for number, (replicas, eligible) in enumerate(rows):
        first = replicas[0] if replicas[0] in eligible else min(eligible, key=lambda node: (count[node], node))
        leader.append(first)
        count[first] += 1
        led[first][number] = None
    while chain := _chain(rows, led, count):
        for number, (giver, taker) in chain:
            del led[giver][number]
            led[taker][number] = None
            leader[number] = taker
            count[giver] -= 1
            count[taker] += 1
    return [
        (first, *(node for node in replicas if node != first))
        for first, (replicas, _) in zip(leader, rows, strict=True)
    ]


def _chain(
    rows: Sequence[tuple[tuple[int, ...], Collection[int]]],
    led: Mapping[int, Mapping[int, None]],
    count: Mapping[int, int],
) -> list[tuple[int, tuple[int, int]]]:
    """The hand-overs that take one stream from a node that leads most to one that leads at least two fewer."""
    for start in sorted((node for node in led if led[node]), key=lambda node: (-count[node], node)):
        came: dict[int, tuple[int, tuple[int, int]]] = {}
        queue = [start]
        for giver in queue:  # grows meanwhile: the nearest first
            for number in led.get(giver, ()):
                for taker in rows[number][1]:
                    if taker == start or taker in came:
                        continue
                    came[taker] = (number, (giver, taker))
                    queue.append(taker)
                    if count[taker] <= count[start] - 2:
                        return _way(came, start, taker)
    return []


def _way(came: Mapping[int, tuple[int, tuple[int, int]]], start: int, end: int) -> list[tuple[int, tuple[int, int]]]:
    way: list[tuple[int, tuple[int, int]]] = []
    while end != start:
        way.append(came[end])
        end = came[end][1][0]
    return way


class _Place(NamedTuple):
    rack: str
    host: tuple[str, str]


def _place(node: Node) -> _Place:
    rack = node.rack or ""
    return _Place(rack, (rack, node.host))


def _eligible(replicas: tuple[int, ...], at_home: set[int]) -> tuple[int, ...]:
    return tuple(node for node in replicas if node in at_home) or replicas


def _mixed(seed: int, node: int) -> int:
    """A number that looks drawn at random (the finish of splitmix64), the same for the same two."""
    mixed = ((seed << 32 | node) + 0x9E3779B97F4A7C15) & _64_BITS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _64_BITS
    return mixed ^ mixed >> 31


class _Choice:
    """The nodes to choose from, and what they hold by now."""

    def __init__(self, nodes: Sequence[Node], load: Mapping[int, int]) -> None:
        self.nodes = {node.node: node for node in sorted(nodes, key=lambda node: node.node)}
        self.places = {node: _place(value) for node, value in self.nodes.items()}
        self._load = {node: load.get(node, 0) for node in self.nodes}
        self._in_place: dict[object, int] = defaultdict(int)
        for node, held in self._load.items():
            self._in_place[self.places[node].rack] += held
            self._in_place[self.places[node].host] += held

    def take(self, chosen: Sequence[int], candidates: Iterable[Node], seed: int) -> int:
        node = self.best(chosen, candidates, seed)
        self._load[node] += 1
        self._in_place[self.places[node].rack] += 1
        self._in_place[self.places[node].host] += 1
        return node

    def best(self, chosen: Sequence[int], candidates: Iterable[Node], seed: int) -> int:
        taken: dict[object, int] = defaultdict(int)
        for node in chosen:
            if node in self.places:
                taken[self.places[node].rack] += 1
                taken[self.places[node].host] += 1

        def rank(node: Node) -> tuple[int, ...]:
            rack, host = self.places[node.node]
            spread = taken[rack], taken[host]
            held = self._load[node.node], self._in_place[rack], self._in_place[host]
            return *spread, *held, _mixed(seed, node.node), node.node

        return min((node for node in candidates if node.node not in chosen), key=rank).node
