"""A region has one writer, whoever's log it is: the second node to open it takes it from the first, for good."""

import pytest

from tidelog.regionwal import Fenced, RegionWal

from .world import World, contents, expected, payloads

REGION, TABLE = 2, 9


@pytest.fixture
def pair(world: World) -> tuple[RegionWal, RegionWal]:
    """The first has written ten entries; the second has just opened the region."""
    first, second = world.node(), world.node()
    first.write(REGION, TABLE, payloads(TABLE, 1, 10))
    second.open_region(REGION)
    return first, second


def test_first_nodes_next_write_fails_and_leaves_nothing(pair: tuple[RegionWal, RegionWal], world: World) -> None:
    first, second = pair

    with pytest.raises(Fenced, match=rf"{world.namespace}.*{REGION}|region {REGION}"):
        first.write(REGION, TABLE, [b"too late"])

    assert contents(second.read(REGION, TABLE)) == expected(TABLE, 1, 10)
    assert second.write(REGION, TABLE, payloads(TABLE, 11, 1)) == 11
    assert contents(second.scan(REGION)) == expected(TABLE, 1, 11)


def test_first_node_stays_fenced_until_it_opens_the_region_again(pair: tuple[RegionWal, RegionWal]) -> None:
    first, second = pair
    for _ in range(2):
        with pytest.raises(Fenced):
            first.write(REGION, TABLE, [b"too late"])
    second.write(REGION, TABLE, payloads(TABLE, 11, 1))

    first.close_region(REGION)
    first.open_region(REGION)

    assert first.write(REGION, TABLE, payloads(TABLE, 12, 1)) == 12
    assert contents(first.read(REGION, TABLE)) == expected(TABLE, 1, 12)
    with pytest.raises(Fenced):
        second.write(REGION, TABLE, [b"too late"])


def test_what_the_first_node_still_gets_into_the_log_is_nobodys(
    pair: tuple[RegionWal, RegionWal], world: World
) -> None:
    """Its record lands after the second node's epoch, for the log takes it; no reader sees it, nor a third node."""
    first, second = pair
    second.write(REGION, TABLE, payloads(TABLE, 11, 1))
    with pytest.raises(Fenced):
        first.write(REGION, TABLE, [b"too late"])
    second.write(REGION, TABLE, payloads(TABLE, 12, 1))

    third = world.node()

    assert contents(third.scan(REGION)) == expected(TABLE, 1, 12)
    assert contents(third.read(REGION, TABLE)) == expected(TABLE, 1, 12)


def test_first_node_cleans_nothing(pair: tuple[RegionWal, RegionWal], world: World) -> None:
    """It would cut off what the second node still needs."""
    first, second = pair
    earliest = world.earliest(world.data_topic(REGION))
    first.mark_delete(REGION, TABLE, 10)

    with pytest.raises(Fenced):
        first.clean_region(REGION)

    assert world.earliest(world.data_topic(REGION)) == earliest
    assert contents(second.read(REGION, TABLE)) == expected(TABLE, 1, 10)
    assert contents(world.node().read(REGION, TABLE)) == expected(TABLE, 1, 10)


def test_first_node_that_is_fenced_in_one_region_goes_on_in_others(pair: tuple[RegionWal, RegionWal]) -> None:
    first, _ = pair
    first.write(REGION + 1, TABLE, payloads(TABLE, 1, 1))
    with pytest.raises(Fenced):
        first.write(REGION, TABLE, [b"too late"])

    assert first.write(REGION + 1, TABLE, payloads(TABLE, 2, 1)) == 2
