"""What ListPartitionReassignments makes of a partition: what shall be against what is."""

import pytest

from tidelog.cluster import Partition
from tidelog.server.handlers.reassignments import _moving


@pytest.mark.parametrize(
    ("partition", "adding", "removing"),
    [
        pytest.param(Partition(1, (1, 2)), [], [], id="new, and not reported yet"),
        pytest.param(Partition(1, (1, 2), leader=1, term=1, voters=(1, 2)), [], [], id="as it shall be"),
        pytest.param(Partition(1, (2, 1), leader=1, term=1, voters=(1, 2)), [], [], id="another order"),
        pytest.param(Partition(1, (1, 3), leader=1, term=1, voters=(1, 2)), [3], [2], id="begun"),
        pytest.param(
            Partition(1, (1, 3), leader=1, term=1, voters=(1, 2), learners=(3,)), [3], [2], id="a learner has no vote"
        ),
        pytest.param(Partition(1, (1, 3), leader=1, term=1, voters=(1, 2, 3)), [], [2], id="one is left to remove"),
        pytest.param(
            Partition(1, (1,), leader=1, term=1, voters=(1,), learners=(4,)), [], [4], id="a learner is left to remove"
        ),
        pytest.param(Partition(1, (1, 3), initial=(1, 2)), [3], [2], id="begun before the first report"),
    ],
)
def test_a_partition_moves_where_its_members_are_not_its_replicas(
    partition: Partition, adding: list[int], removing: list[int]
) -> None:
    row = _moving(7, partition)
    assert (row.partition_index, row.adding_replicas, row.removing_replicas) == (7, adding, removing)
    assert row.replicas == [*partition.replicas, *removing]
