"""Whatever befalls a cluster, the planner brings it back, step by step, and harms nobody on the way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.toy_cluster import CONFIG, NODES, Toy

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["die", "come_back", "come_back", "lose_disk", "drain", "reassign", "change_controller"]),
        st.sampled_from(NODES),
        st.integers(0, 12),
    ),
    max_size=15,
)
ROUNDS_MAX = 600


def _settle(toy: Toy) -> None:
    toy.obedience = 1.0
    for _ in range(ROUNDS_MAX):
        toy.round()
        if not toy.trouble():
            return
    pytest.fail("\n".join(toy.trouble()))


@given(st.integers(0, 2**32), _EVENTS, st.sampled_from([None, *NODES]), st.sampled_from([None, *NODES]))
@settings(max_examples=settings().max_examples // 2)
def test_the_cluster_always_comes_to_rest(
    seed: int, events: list[tuple[str, int, int]], dead: int | None, draining: int | None
) -> None:
    """In the end all are alive, except perhaps one that stays dead, and one that is being emptied."""
    toy = Toy(seed)
    for what, node, rounds in events:
        getattr(toy, what)(node)
        for _ in range(rounds):
            toy.round()
    for node in NODES:
        toy.come_back(node)
        if toy.machine.state.nodes[node].draining != (node == draining):
            toy.drain(node)
    _settle(toy)
    if dead is not None and all(toy.works(group) for group in toy.groups.values()):
        toy.die(dead)
        if not all(toy.works(group) for group in toy.groups.values()):
            toy.come_back(dead)  # it was the only one that had something
        _settle(toy)
    toy.round()
    still = [(p.leader, p.replicas, p.voters) for p in toy.partitions()]
    for _ in range(60):
        toy.round()
        assert not toy.trouble(), "it does not stay at rest"
    assert [(p.leader, p.replicas, p.voters) for p in toy.partitions()] == still


@pytest.mark.parametrize("node", NODES)
def test_a_lost_disk_is_filled_again(node: int) -> None:
    toy = Toy(node)
    _settle(toy)
    toy.lose_disk(node)
    toy.round()
    toy.come_back(node)
    _settle(toy)
    assert all(node in group.whole for group in toy.groups.values() if node in group.voters)
    assert (node in toy.groups[0].voters) == (node in CONFIG)
