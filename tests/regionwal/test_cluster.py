"""Three nodes, one of which dies or stands still while a database writes: everything acknowledged is there, once."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.faults.cluster import Cluster
from tidelog.regionwal import RegionWal, RegionWalError, Settings

from .model import content_of

NAMESPACE, REGION = "wal", 1
DATA_TOPIC = f"{NAMESPACE}_data_{REGION}"
TABLES = range(3)
WRITES_BEFORE, WRITES_AFTER = 20, 40
WRITE_S_MAX = 12.0  # a node that says nothing is given up after a third of it
THREAD_S_MAX = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


class Writer(threading.Thread):
    """Writes to one table until it has done so often enough, and notes what it was told."""

    def __init__(self, wal: RegionWal, table: int, halfway: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._wal, self._table, self._halfway = wal, table, halfway
        self.acknowledged: list[tuple[int, bytes]] = []
        self.failures: list[RegionWalError] = []

    def run(self) -> None:
        for number in range(WRITES_BEFORE + WRITES_AFTER):
            if number == WRITES_BEFORE:
                self._halfway.wait(THREAD_S_MAX)
            payload = b"table %d write %d" % (self._table, number)
            try:
                self.acknowledged.append((self._wal.write(REGION, self._table, [payload]), payload))
            except RegionWalError as error:
                self.failures.append(error)


@pytest.mark.slow
@pytest.mark.parametrize("strike", ["kill", "stop"])
def test_database_writes_on_when_the_leader_of_its_log_is_gone(cluster: Cluster, strike: str) -> None:
    settings = Settings(bootstrap=cluster.bootstrap, namespace=NAMESPACE, clean_period_s=0, write_timeout_s=WRITE_S_MAX)
    wal = RegionWal(settings)
    try:
        wal.open_region(REGION)
        halfway = threading.Barrier(len(TABLES) + 1)
        writers = [Writer(wal, table, halfway) for table in TABLES]
        for writer in writers:
            writer.start()
        strike_node: Callable[[], None] = getattr(cluster.nodes[cluster.leader(DATA_TOPIC)], strike)
        halfway.wait(THREAD_S_MAX)
        strike_node()
        for writer in writers:
            writer.join(THREAD_S_MAX)

        assert [writer.failures for writer in writers] == [[], [], []]
        wanted = {table: writer.acknowledged for table, writer in zip(TABLES, writers, strict=True)}
        assert content_of(wal.scan(REGION)) == wanted
    finally:
        wal.close()
    other = RegionWal(settings)
    try:
        assert content_of(other.scan(REGION)) == wanted
    finally:
        other.close()
