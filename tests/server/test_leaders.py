"""Who is said to lead: whoever leads the newest term that is known, by the node's own replica or by the state."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.cluster import Partition
from tidelog.raft import Configuration, MemberView
from tidelog.server.leaders import leader_of, standing_of, successor_of

STREAM = 5


def _broker(own: tuple[int | None, int] | None) -> Any:
    """Nodes 1 to 3 are registered; `own` is (leader, term) as this node's replica has it."""
    replicas: dict[int, Any] = {}
    if own is not None:
        group = SimpleNamespace(leader=own[0], term=own[1], configuration=Configuration((1, 2)))
        replicas[STREAM] = SimpleNamespace(group=group)
    return SimpleNamespace(node=SimpleNamespace(replicas=replicas), state=SimpleNamespace(nodes={1: 0, 2: 0, 3: 0}))


@pytest.mark.parametrize(
    ("own", "reported", "leader"),
    [
        pytest.param(None, (2, 4), (2, 4), id="no replica here"),
        pytest.param(None, (-1, -1), (-1, -1), id="nobody knows"),
        pytest.param((1, 4), (-1, -1), (1, 4), id="not reported yet"),
        pytest.param((1, 5), (2, 4), (1, 5), id="the replica knows a newer one"),
        pytest.param((1, 3), (2, 4), (2, 4), id="the state knows a newer one"),
        pytest.param((None, 3), (2, 4), (2, 4), id="the replica hears nobody"),
        pytest.param((None, 4), (2, 4), (2, 4), id="the replica does not know the term's leader"),
        pytest.param((None, 5), (2, 4), (-1, -1), id="an election is under way"),
        pytest.param((9, 5), (2, 4), (-1, -1), id="a leader that clients cannot find"),
    ],
)
def test_the_leader_of_the_newest_term_is_named(
    own: tuple[int | None, int] | None, reported: tuple[int, int], leader: tuple[int, int]
) -> None:
    partition = Partition(STREAM, (1, 2, 3), leader=reported[0], term=reported[1], voters=(2, 3))
    assert leader_of(_broker(own), partition) == leader


def test_the_members_come_from_who_knows_the_leader() -> None:
    partition = Partition(STREAM, (3, 1), leader=2, term=4, voters=(2, 3))
    offline = frozenset({3})
    assert standing_of(_broker((1, 5)), partition, offline)[2:] == ([3, 1, 2], [1, 2], [3])
    assert standing_of(_broker((1, 3)), partition, offline)[2:] == ([3, 1, 2], [2], [3])
    assert standing_of(_broker(None), partition, frozenset())[2:] == ([3, 1, 2], [3, 2], [])


def _member(node: int, match: int, voter: bool = True, accepting: bool = True) -> MemberView:
    return MemberView(node, match, 0, voter, not voter, accepting)


@pytest.mark.parametrize(
    ("others", "successor"),
    [
        pytest.param([_member(2, 8), _member(3, 9)], 3, id="who has most"),
        pytest.param([_member(4, 9), _member(3, 9)], 3, id="who lives"),
        pytest.param([_member(4, 9), _member(3, 7)], 3, id="who lives, though it lacks something"),
        pytest.param([_member(2, 9, accepting=False), _member(3, 9)], 3, id="who has room"),
        pytest.param([_member(2, 9, voter=False), _member(3, 7)], 3, id="who has a vote"),
        pytest.param([_member(4, 9), _member(2, 9, accepting=False)], None, id="nobody"),
        pytest.param([], None, id="there is nobody else"),
    ],
)
def test_a_stream_is_handed_over_to_the_one_that_can_go_on(others: list[MemberView], successor: int | None) -> None:
    """Node 1 leads it, node 4 is dead."""
    group = SimpleNamespace(members=lambda _now_ms: [_member(1, 9), *others], asleep=False)
    broker: Any = SimpleNamespace(
        now=lambda: 0, settings=SimpleNamespace(node_id=1), is_alive=lambda node: node in (1, 2, 3)
    )
    replica: Any = SimpleNamespace(group=group)
    assert successor_of(broker, replica) == successor
