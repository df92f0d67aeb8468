"""Evening out what nodes hold and lead, when somebody asks for it (`tidelog cluster balance`). Pure.

The cluster does not move replicas by itself as long as all nodes live: copying is dear, and what is uneven today may be
even tomorrow. New nodes are filled by new topics, or by this.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidelog.cluster.actions import Health, Submit, TransferLeader
from tidelog.cluster.commands import AssignReplicas
from tidelog.cluster.placement import even_leaders, usable
from tidelog.cluster.state import ClusterState, Node, Partition

BALANCE_MOVES_MAX = 64
"""Streams that one call moves; another one goes on."""


def balance(state: ClusterState, health: Health, moves_max: int = BALANCE_MOVES_MAX) -> list[Submit | TransferLeader]:
    """Few changes that even out replicas, then preferred leaders; and the leaders that can move home at once.

    Replicas go from the fullest node to the emptiest while they differ by two or more, and never so that a stream is in
    fewer data centres or hosts than before. Streams that are changing already, or that miss a replica, are left alone.
    """
    nodes = {node.node: node for node in usable(state.nodes.values()) if node.node in health.alive}
    partitions = {p.stream: p for topic in state.topics.values() for p in topic.partitions}
    racks = {
        partition.stream: topic.configs.get("leader.rack")
        for topic in state.topics.values()
        for partition in topic.partitions
    }
    movable = {stream: p for stream, p in partitions.items() if _at_rest(p, nodes)}
    moved = _even_replicas(movable, partitions, nodes, racks, moves_max)
    led = _even_preferred(moved, partitions, nodes, racks)
    actions: list[Submit | TransferLeader] = []
    for stream, before in movable.items():
        after = led[stream].replicas
        if after != before.replicas:
            actions.append(Submit(AssignReplicas([(stream, before.replicas, after)])))
        if before.leader != after[0] and after[0] in before.voters:
            actions.append(TransferLeader(stream, after[0]))
    return actions


def _at_rest(partition: Partition, nodes: Mapping[int, Node]) -> bool:
    return (
        not partition.absent
        and not partition.learners
        and set(partition.voters) == set(partition.replicas)
        and all(node in nodes for node in partition.replicas)
    )


def _even_replicas(
    movable: Mapping[int, Partition],
    partitions: Mapping[int, Partition],
    nodes: Mapping[int, Node],
    racks: Mapping[int, str | None],
    moves_max: int,
) -> dict[int, Partition]:
    """The movable partitions, some of them with a replica elsewhere."""
    moved = dict(movable)
    load: dict[int, int] = dict.fromkeys(nodes, 0)
    held: dict[int, set[int]] = defaultdict(set)
    for partition in partitions.values():
        for node in partition.replicas:
            load[node] = load.get(node, 0) + 1
            if partition.stream in movable:
                held[node].add(partition.stream)
    touched: set[int] = set()
    barren: set[tuple[int, int]] = set()
    while len(touched) < moves_max:
        move = _move(moved, held, load, nodes, racks, barren)
        if move is None:
            break
        stream, giver, taker = move
        after = tuple(taker if node == giver else node for node in moved[stream].replicas)
        moved[stream] = replace(moved[stream], replicas=after)
        touched.add(stream)
        for node in moved[stream].replicas:
            held[node].discard(stream)  # each stream moves once
        held[giver].discard(stream)
        load[giver] -= 1
        load[taker] += 1
    return moved


def _move(
    moved: Mapping[int, Partition],
    held: Mapping[int, set[int]],
    load: Mapping[int, int],
    nodes: Mapping[int, Node],
    racks: Mapping[int, str | None],
    barren: set[tuple[int, int]],
) -> tuple[int, int, int] | None:
    """A stream, the node that gives its replica away, and the one that takes it.

    Two nodes between which nothing can move are `barren` for good: what may still move does not change.
    """
    by_load = sorted(nodes, key=lambda node: (load[node], node))
    for giver in reversed(by_load):
        for taker in by_load:
            if load[giver] - load[taker] < 2:
                break
            if (giver, taker) in barren:
                continue
            for stream in sorted(held.get(giver, ())):
                replicas = moved[stream].replicas
                if taker not in replicas and not _spoils(replicas, giver, taker, nodes, racks[stream]):
                    return stream, giver, taker
            barren.add((giver, taker))
    return None


def _spoils(
    replicas: Sequence[int], giver: int, taker: int, nodes: Mapping[int, Node], leader_rack: str | None
) -> bool:
    """Whether the stream would be in fewer data centres or hosts, or lose its preferred one."""
    before = [nodes[node] for node in replicas]
    after = [nodes[taker if node == giver else node] for node in replicas]

    def spread(chosen: Sequence[Node]) -> tuple[bool, int, int]:
        at_home = bool(leader_rack) and any(node.rack == leader_rack for node in chosen)
        return at_home, len({node.rack or "" for node in chosen}), len({(node.rack, node.host) for node in chosen})

    return any(less < more for less, more in zip(spread(after), spread(before), strict=True))


def _even_preferred(
    moved: Mapping[int, Partition],
    partitions: Mapping[int, Partition],
    nodes: Mapping[int, Node],
    racks: Mapping[int, str | None],
) -> dict[int, Partition]:
    """The same partitions, their preferred leaders spread evenly, in the topic's data centre where it has one."""
    leaders: dict[int, int] = dict.fromkeys(nodes, 0)
    for stream, partition in partitions.items():
        if stream not in moved:
            first = partition.replicas[0]
            leaders[first] = leaders.get(first, 0) + 1
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for stream, partition in moved.items():
        rack = racks[stream]
        home = tuple(node for node in partition.replicas if rack and nodes[node].rack == rack)
        rows.append((partition.replicas, home or partition.replicas))
    evened = even_leaders(rows, leaders)
    return {s: replace(p, replicas=row) for (s, p), row in zip(moved.items(), evened, strict=True)}
