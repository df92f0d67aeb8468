"""Where replicas go: spread over racks, hosts and nodes; leaders spread evenly; the same every time."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cluster import Node, Partition
from tidelog.cluster.placement import even_leaders, loads, place, replacement


def _node(number: int, rack: str | None = None, host: str = "", **rest: object) -> Node:
    return Node(number, host or f"host-{number}", 9092, rack, **rest)  # type: ignore[arg-type]


def _racks(nodes: Sequence[Node], replicas: Sequence[int]) -> set[str | None]:
    return {node.rack for node in nodes if node.node in replicas}


THREE_CENTRES = [_node(1, "a"), _node(2, "a"), _node(3, "b"), _node(4, "b"), _node(5, "c"), _node(6, "c")]


# --- examples --------------------------------------------------------------------------------------------------------


def test_replicas_are_in_different_data_centres() -> None:
    for replicas in place(THREE_CENTRES, {}, {}, 12, 3):
        assert _racks(THREE_CENTRES, replicas) == {"a", "b", "c"}


def test_replicas_of_one_data_centre_are_on_different_hosts() -> None:
    nodes = [_node(1, "a", "x"), _node(2, "a", "x"), _node(3, "a", "y"), _node(4, "a", "y")]
    for replicas in place(nodes, {}, {}, 8, 2):
        assert {nodes[node - 1].host for node in replicas} == {"x", "y"}


def test_the_same_host_name_in_two_data_centres_is_two_hosts() -> None:
    nodes = [_node(1, "a", "x"), _node(2, "b", "x"), _node(3, "b", "y")]
    assert replacement(nodes, {2: 0, 3: 5}, (1, 3), 3, {1, 2, 3}) == 2


def test_new_partitions_go_where_the_least_is() -> None:
    nodes = [_node(number) for number in (1, 2, 3, 4)]
    assert {*place(nodes, {1: 5, 2: 5, 3: 1, 4: 1}, {}, 1, 2)[0]} == {3, 4}


def test_leaders_are_in_the_preferred_data_centre() -> None:
    placed = place(THREE_CENTRES, {}, {}, 10, 3, "b")
    assert Counter(replicas[0] for replicas in placed) == {3: 5, 4: 5}


def test_a_partition_has_a_replica_in_the_preferred_data_centre_though_it_is_the_fullest() -> None:
    for replicas in place(THREE_CENTRES, {3: 100, 4: 100}, {}, 6, 2, "b"):
        assert replicas[0] in (3, 4)
        assert len(_racks(THREE_CENTRES, replicas)) == 2


def test_a_preferred_data_centre_that_has_no_nodes_is_no_preference() -> None:
    assert place(THREE_CENTRES, {}, {}, 10, 3, "moon") == place(THREE_CENTRES, {}, {}, 10, 3)


def test_the_neighbours_of_a_node_are_not_always_the_same() -> None:
    """When it dies, all others take over a part of its work."""
    nodes = [_node(number) for number in range(1, 7)]
    placed = place(nodes, {}, {}, 60, 2)
    assert {other for replicas in placed if 1 in replicas for other in replicas} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    "nodes",
    [
        [_node(1), _node(2)],
        [_node(1), _node(2), _node(3, draining=True)],
        [_node(1), _node(2), _node(3, roles=("config",))],
    ],
)
def test_more_replicas_than_nodes_are_not_possible(nodes: list[Node]) -> None:
    with pytest.raises(ValueError, match="replication 3 is not possible: 2 nodes can take replicas"):
        place(nodes, {}, {}, 1, 3)


def test_no_replicas_are_not_possible() -> None:
    with pytest.raises(ValueError, match="replication 0 is not possible"):
        place([_node(1)], {}, {}, 1, 0)


@pytest.mark.parametrize(
    ("load", "replicas", "leaving", "alive", "expected"),
    [
        ({}, (1, 3, 5), 5, {1, 2, 3, 4, 5, 6}, 6),  # the same data centre
        ({6: 99}, (1, 3, 5), 5, {1, 2, 3, 4, 5, 6}, 6),  # also when it is full
        ({2: 7, 4: 3}, (1, 3, 5), 5, {1, 2, 3, 4}, 4),  # the data centre is lost: the least
        ({}, (1, 3, 5), 5, {1, 3}, None),
        ({}, (1, 3, 5), 5, set(), None),
        ({}, (5,), 5, {2}, 2),
    ],
)
def test_the_replacement_of_a_replica(
    load: dict[int, int], replicas: tuple[int, ...], leaving: int, alive: set[int], expected: int | None
) -> None:
    assert replacement(THREE_CENTRES, load, replicas, leaving, alive) == expected


def test_the_only_replica_in_the_preferred_data_centre_is_replaced_there() -> None:
    nodes = [_node(1, "a"), _node(2, "b"), _node(3, "a"), _node(4, "c")]
    assert replacement(nodes, {}, (1, 2), 1, {2, 3, 4}, "a") == 3
    assert replacement(nodes, {3: 1}, (1, 2), 1, {2, 3, 4}) == 4
    assert replacement(nodes, {}, (1, 2), 1, {2, 4}, "a") == 4


def test_a_replica_on_a_draining_node_counts_for_the_spread() -> None:
    nodes = [_node(1, "a", draining=True), _node(2, "b"), _node(3, "a"), _node(4, "b")]
    assert replacement(nodes, {3: 0, 4: 5}, (1, 2), 2, {1, 2, 3, 4}) == 4


def test_what_nodes_hold_and_lead() -> None:
    assert loads([Partition(1, (1, 2)), Partition(2, (1, 3)), Partition(3, (3,))]) == ({1: 2, 2: 1, 3: 2}, {1: 2, 3: 1})


def test_leadership_is_handed_on_along_a_chain_when_that_is_the_only_way() -> None:
    """1 leads two, and shares nothing with 3, which leads none: 2 takes one from 1 and gives one to 3."""
    rows = [((1,), (1,)), ((1, 2), (1, 2)), ((2, 3), (2, 3))]
    assert even_leaders(rows, {}) == [(1,), (2, 1), (3, 2)]


def test_leaders_that_are_even_stay_as_they_are() -> None:
    rows = [((1, 2, 3), (1, 2, 3)), ((2, 1, 3), (1, 2, 3)), ((3, 1, 2), (1, 2, 3)), ((3, 2, 1), (1, 2, 3))]
    assert even_leaders(rows, {}) == [replicas for replicas, _ in rows]


# --- properties ------------------------------------------------------------------------------------------------------


@st.composite
def _clusters(draw: st.DrawFn) -> list[Node]:
    numbers = draw(st.lists(st.integers(1, 20), min_size=1, max_size=9, unique=True))
    return [
        _node(
            number,
            draw(st.sampled_from([None, "a", "b", "c"])),
            draw(st.sampled_from(["", "x", "y"])),
            roles=draw(st.sampled_from([("config", "data"), ("data",), ("data",), ("config",)])),
            draining=draw(st.sampled_from([False, False, False, True])),
        )
        for number in numbers
    ]


_COUNTS = st.dictionaries(st.integers(1, 20), st.integers(0, 5))


@given(_clusters(), _COUNTS, _COUNTS, st.integers(1, 8), st.integers(1, 4), st.sampled_from([None, "a", "b"]))
def test_wherever_replicas_go_they_are_apart(
    nodes: list[Node],
    load: dict[int, int],
    leaders: dict[int, int],
    partitions: int,
    replication: int,
    leader_rack: str | None,
) -> None:
    possible = [node for node in nodes if "data" in node.roles and not node.draining]
    if replication > len(possible):
        with pytest.raises(ValueError, match="is not possible"):
            place(nodes, load, leaders, partitions, replication, leader_rack)
        return
    placed = place(nodes, load, leaders, partitions, replication, leader_rack)
    assert placed == place(nodes[::-1], dict(sorted(load.items())), leaders, partitions, replication, leader_rack)
    assert len(placed) == partitions
    racks = {node.rack or "" for node in possible}
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == replication
        assert set(replicas) <= {node.node for node in possible}
        used = {node.rack or "" for node in possible if node.node in replicas}
        assert len(used) == min(len(racks), replication)
        if leader_rack in racks:
            assert next(node.rack for node in possible if node.node == replicas[0]) == leader_rack


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.data())
def test_nodes_that_are_alike_hold_and_lead_alike(racks: int, size: int, partitions: int, data: st.DataObject) -> None:
    nodes = [_node(rack * 10 + number, f"rack-{rack}") for rack in range(racks) for number in range(size)]
    replication = data.draw(st.integers(1, len(nodes)))
    placed = place(nodes, {}, {}, partitions, replication)
    held = Counter(node for replicas in placed for node in replicas)
    led = Counter(replicas[0] for replicas in placed)
    for count in (held, led):
        numbers = [count[node.node] for node in nodes]
        assert max(numbers) - min(numbers) <= 1


@given(st.integers(1, 9), st.lists(st.integers(1, 6), min_size=1, max_size=12))
def test_topics_made_one_after_the_other_add_up_to_an_even_load(nodes_count: int, topics: list[int]) -> None:
    nodes = [_node(number) for number in range(nodes_count)]
    partitions: list[Partition] = []
    for count in topics:
        load, leaders = loads(partitions)
        partitions += [Partition(0, r) for r in place(nodes, load, leaders, count, min(3, nodes_count))]
    load, leaders = loads(partitions)
    held = [load.get(node.node, 0) for node in nodes]
    assert max(held) - min(held) <= 1


_ROWS = st.lists(
    st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True).flatmap(
        lambda nodes: st.tuples(
            st.just(tuple(nodes)), st.lists(st.sampled_from(nodes), min_size=1, unique=True).map(tuple)
        )
    ),
    min_size=1,
    max_size=5,
)


def _unevenness(rows: Sequence[tuple[int, ...]], leaders: dict[int, int]) -> int:
    count = Counter(leaders)
    count.update(row[0] for row in rows)
    return sum(number * number for number in count.values())


@given(_ROWS, st.dictionaries(st.integers(1, 5), st.integers(0, 3)))
def test_leaders_are_spread_as_evenly_as_can_be(
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]], leaders: dict[int, int]
) -> None:
    evened = even_leaders(rows, leaders)
    for row, (replicas, eligible) in zip(evened, rows, strict=True):
        assert row[0] in eligible
        assert sorted(row) == sorted(replicas)
    best = [()]
    for _, eligible in rows:
        best = [(*chosen, node) for chosen in best for node in eligible]  # type: ignore[misc]
    least = min(_unevenness([(node,) for node in chosen], leaders) for chosen in best)
    assert _unevenness(evened, leaders) == least


@given(_clusters(), _COUNTS, st.data())
def test_a_replacement_is_another_node_that_can_take_it(
    nodes: list[Node], load: dict[int, int], data: st.DataObject
) -> None:
    numbers = [node.node for node in nodes]
    replicas = data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=3, unique=True))
    leaving = data.draw(st.sampled_from(replicas))
    alive = data.draw(st.sets(st.sampled_from(numbers)))
    found = replacement(nodes, load, replicas, leaving, alive)
    possible = {n.node for n in nodes if "data" in n.roles and not n.draining} & alive - set(replicas)
    assert (found in possible) if possible else (found is None)
