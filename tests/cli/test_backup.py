"""Backup, restore and verify against a cluster that is as the test says: every fault at a chosen moment."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.cli import backup, main
from tidelog.cli.backup import Throttle, rate
from tidelog.cli.backup_folder import BackupFolder
from tidelog.cli.restore import plain_batch
from tidelog.wire import messages as m
from tidelog.wire.batch import check_batch, read_header
from tidelog.wire.compression import Codec
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record, build_batch, read_records

from .command import one_line
from .fake_cluster import FakeCluster, FakePartition, Hang, Refuse


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "TRY_S", 0.01)
    monkeypatch.setattr("tidelog.cli.restore.TRY_S", 0.01)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


class World:
    def __init__(self, fake: FakeCluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fake = fake
        self.folder = folder
        self._capsys = capsys

    def _run(self, arguments: list[str], status: int) -> str:
        assert main(arguments) == status, self._capsys.readouterr()
        captured = self._capsys.readouterr()
        return captured.out if status == 0 else captured.out + captured.err

    def backup(self, *arguments: str, status: int = 0) -> str:
        return self._run(["backup", "--to", str(self.folder), *arguments, "--bootstrap", self.fake.bootstrap], status)

    def restore(self, *arguments: str, status: int = 0) -> str:
        return self._run(
            ["restore", "--from", str(self.folder), *arguments, "--bootstrap", self.fake.bootstrap], status
        )

    def verify(self, *arguments: str, status: int = 0) -> str:
        return self._run(["verify", *arguments, "--bootstrap", self.fake.bootstrap], status)

    def held(self, stream: str, partition: int = 0) -> list[bytes]:
        """Values in the backup, which must be in order."""
        self.verify("--backup", str(self.folder))
        folder = BackupFolder(str(self.folder))
        manifest = folder.manifest(stream)
        assert manifest is not None
        batches = folder.batches(stream, manifest.partitions[partition])
        return [record.value or b"" for _, batch in batches for record in read_records(batch)]


@pytest.fixture
def world(fake: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> World:
    return World(fake, tmp_path / "backup", capsys)


def values(row: FakePartition, first: int = 0) -> list[tuple[int, bytes | None]]:
    records = [record for batch in row.batches for record in read_records(batch)]
    return [(record.offset, record.value) for record in records if record.offset >= first]


def filled(fake: FakeCluster, name: str = "orders", count: int = 10, closed: int = 6) -> FakePartition:
    """Batches of two records each, of which the first `closed` lie in two closed segments."""
    row = fake.topic(name)[0]
    row.write_own()
    for i in range(count):
        row.write(f"{i}a", f"{i}b")
    row.cuts = on_all([closed // 2 + 1, closed + 1])
    return row


def on_all(cuts: list[int]) -> dict[int, list[int]]:
    return {1: cuts, 2: cuts, 3: cuts}


def expected(count: int = 10) -> list[bytes]:
    return [f"{i}{letter}".encode() for i in range(count) for letter in "ab"]


# --- backup -----------------------------------------------------------------------------------------------------------


def test_a_backup_holds_closed_segments_and_the_rest(world: World) -> None:
    filled(world.fake)
    assert "orders: 1 partitions, 20 records" in world.backup()
    assert world.held("orders") == expected()
    names = sorted(os.listdir(world.folder / "streams" / "orders" / "0"))
    assert [name.rpartition(".")[2] for name in names] == ["log", "log", "tail"]


def test_the_next_backup_reads_only_what_is_new(world: World) -> None:
    row = filled(world.fake)
    world.backup()
    before = world.fake.read_bytes
    row.write("10a", "10b")
    world.backup()
    assert world.fake.read_bytes == before
    assert world.held("orders") == expected(11)
    row.cuts = on_all([4, 7, 12])  # the active segment was closed
    world.backup()
    assert world.held("orders") == expected(11)
    assert world.fake.read_bytes > before
    names = sorted(os.listdir(world.folder / "streams" / "orders" / "0"))
    assert [name.rpartition(".")[2] for name in names] == ["log", "log", "log"]


def test_replicas_that_cut_their_segments_elsewhere(world: World) -> None:
    row = filled(world.fake)
    world.backup()
    row.cuts[2] = [3, 9]
    row.leader = 2
    world.backup()
    assert world.held("orders") == expected()


def test_an_interrupted_backup_goes_on_in_the_middle_of_a_segment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world.fake)
    monkeypatch.setattr(Throttle, "piece_bytes_max", 100)
    monkeypatch.setattr(backup, "TRIES_MAX", 1)
    reads = 0

    def die_in_the_second_segment(node: int, request: Any) -> None:
        nonlocal reads
        reads += isinstance(request, m.ReadSegmentRequest)
        if reads >= 6:
            raise Hang

    world.fake.before = die_in_the_second_segment
    assert "orders:0 was not copied" in world.backup(status=1)
    read = world.fake.read_bytes
    assert "not complete" in world.verify("--backup", str(world.folder), status=1)
    world.fake.before = lambda node, request: None
    world.backup()
    assert world.held("orders") == expected()
    row = world.fake.topics["orders"].partitions[0]
    assert world.fake.read_bytes == sum(len(data) for _, data in row.segments(1)), "nothing was read twice"
    assert read < world.fake.read_bytes


def test_an_interrupted_backup_leaves_the_last_whole_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = filled(world.fake)
    world.backup()
    row.write("10a", "10b")
    row.cuts = on_all([4, 7, 9])
    monkeypatch.setattr(backup, "TRIES_MAX", 1)

    def no_fetch(node: int, request: Any) -> None:
        if isinstance(request, m.FetchRequest):
            raise Hang

    world.fake.before = no_fetch
    world.backup(status=1)
    world.fake.before = lambda node, request: None
    manifest = BackupFolder(str(world.folder)).manifest("orders")
    assert manifest is not None
    assert manifest.partitions[0].next_offset == 20
    assert len(manifest.partitions[0].ahead) == 1
    world.backup()
    assert world.held("orders") == expected(11)


def test_another_replica_serves_when_the_leader_does_not(world: World) -> None:
    filled(world.fake)

    def leader_does_not_list(node: int, request: Any) -> None:
        if getattr(request, "method", "") == "segments" and node == 1:
            raise Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    world.fake.before = leader_does_not_list
    world.backup()
    assert world.held("orders") == expected()


def test_a_damaged_segment_is_noticed_and_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row = filled(world.fake)
    monkeypatch.setattr(backup, "TRIES_MAX", 1)
    damaged = bytearray(row.batches[2])
    damaged[-1] ^= 1
    row.batches[2] = bytes(damaged)
    assert "checksum" in world.backup(status=1)
    assert os.listdir(world.folder / "streams" / "orders" / "0") == []


def test_a_start_offset_within_a_batch(world: World) -> None:
    row = filled(world.fake, closed=0)
    row.cuts = {}
    row.start = 3
    world.backup()
    world.restore("orders=again")
    again = world.fake.topics["again"].partitions[0]
    assert (again.first, again.start, again.end) == (2, 3, 20)
    assert values(again, 3) == values(row, 3)


def test_records_removed_before_they_were_copied(world: World) -> None:
    row = filled(world.fake)
    world.backup()
    for i in range(10, 20):
        row.write(f"{i}a", f"{i}b")
    row.start = 30
    assert "what follows up to 30 is removed" in world.backup(status=1)


def test_a_stream_made_anew_is_not_mixed_with_the_old_one(world: World) -> None:
    filled(world.fake)
    world.backup()
    del world.fake.topics["orders"]
    filled(world.fake)
    assert "deleted and made anew" in world.backup(status=1)


def test_an_empty_stream(world: World) -> None:
    world.fake.topic("empty", 2)[1].start = world.fake.topics["empty"].partitions[1].first = 5
    world.backup()
    assert world.held("empty") == []
    world.restore("empty=again")
    assert [row.end for row in world.fake.topics["again"].partitions] == [0, 5]


def test_folders_that_are_something_else(world: World, tmp_path: Path) -> None:
    filled(world.fake)
    world.folder.mkdir()
    (world.folder / "precious").write_text("mine")
    assert "is not empty and not a backup" in world.backup(status=1)
    assert "is not a backup" in world.restore(status=1)
    (world.folder / "precious").unlink()
    assert one_line(world.backup("missing", status=1)).startswith("there is no stream missing")


def test_json_says_what_was_read(world: World) -> None:
    filled(world.fake)
    done = json.loads(world.backup("--json"))
    assert done["streams"] == [{"stream": "orders", "partitions": 1, "records": 20, "complete": True}]
    assert done["bytes_read"] > 0


def test_rates() -> None:
    assert [rate(text) for text in ("5", "2K", "3m", "1G")] == [5, 2048, 3 << 20, 1 << 30]
    now, slept = [0.0], []
    throttle = Throttle(1000)
    throttle._free_at = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidelog.cli.backup.time", SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append))
        throttle.took(500)
        now[0] = 10.0
        throttle.took(2000)
    assert slept == [0.5, 2.0]


def test_a_backup_takes_as_long_as_its_rate_wants(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(world.fake)
    slept: list[float] = []
    monkeypatch.setattr("tidelog.cli.backup.time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
    done = json.loads(world.backup("--json", "--rate", "1K"))
    assert slept[-1] == done["bytes_read"] / 1024  # the clock stands still, so that pauses add up


# --- restore ----------------------------------------------------------------------------------------------------------


def test_a_restored_stream_has_the_same_offsets(world: World) -> None:
    row = filled(world.fake)
    world.fake.topics["orders"].configs = {"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}
    world.backup()
    assert "restored again: 20 records" in world.restore("orders=again")
    again = world.fake.topics["again"]
    assert values(again.partitions[0]) == values(row)
    assert again.configs == {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    }
    world.restore("orders=third", "--retention")
    assert world.fake.topics["third"].configs == world.fake.topics["orders"].configs


def test_a_restore_goes_on_where_the_stream_ends(world: World) -> None:
    row = filled(world.fake)
    world.backup()
    produced = 0

    def interrupt(node: int, request: Any) -> None:
        nonlocal produced
        produced += isinstance(request, m.ProduceRequest)
        if produced == 5 and isinstance(request, m.ProduceRequest):
            raise Hang

    world.fake.before = interrupt
    del world.fake.topics["orders"]
    world.restore()
    assert values(world.fake.topics["orders"].partitions[0]) == values(row)
    assert "0 records were written" in world.restore()


def test_a_restore_follows_the_leader(world: World) -> None:
    row = filled(world.fake)
    world.backup()
    produced = 0

    def move(node: int, request: Any) -> None:
        nonlocal produced
        produced += isinstance(request, m.ProduceRequest)
        if produced == 4:
            world.fake.topics["again"].partitions[0].leader = 2

    world.fake.before = move
    world.restore("orders=again")
    assert values(world.fake.topics["again"].partitions[0]) == values(row)


def test_a_restore_does_not_write_to_another_stream(world: World) -> None:
    filled(world.fake)
    world.backup()
    other = world.fake.topic("other")[0]
    other.write("something", "else")
    line = world.restore("orders=other", status=1)
    assert "stream other exists and is another" in line
    assert other.end == 2


def test_a_restore_notices_that_somebody_else_writes(world: World) -> None:
    filled(world.fake)
    world.backup()
    produced = 0

    def meddle(node: int, request: Any) -> None:
        nonlocal produced
        produced += isinstance(request, m.ProduceRequest)
        if produced == 4 and isinstance(request, m.ProduceRequest):
            world.fake.topics["again"].partitions[0].write("meddled")

    world.fake.before = meddle
    assert "a batch of offset 6 became 7" in world.restore("orders=again", status=1)


def test_producer_ids_are_taken_out() -> None:
    records = [Record(b"a", timestamp=5), Record(b"b", timestamp=6)]
    batch = build_batch(records, 10, codec=Codec.LZ4, producer_id=77, producer_epoch=1, base_sequence=9)
    plain = plain_batch(read_header(batch), bytes(batch))
    header = check_batch(plain)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert read_records(plain) == records
    assert header.attributes == read_header(batch).attributes


def test_the_logs_time_becomes_the_records_time() -> None:
    batch = build_batch([Record(b"a", timestamp=5), Record(b"b", timestamp=6)], 10, append_time_ms=1234)
    plain = plain_batch(read_header(batch), bytes(batch))
    assert check_batch(plain).attributes & 0x08 == 0
    assert [record.timestamp for record in read_records(plain)] == [1234, 1234]


def test_groups_positions_come_back_when_asked_for(world: World) -> None:
    filled(world.fake)
    world.fake.groups = {"readers": {("orders", 0): 13}}
    world.backup()
    world.fake.groups = {}
    world.restore("orders=again")
    assert world.fake.groups == {}
    world.restore("orders=again", "--groups")
    assert world.fake.groups == {"readers": {("again", 0): 13}}


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["flip", "cut", "lose", "manifest"])
def test_a_damaged_backup_is_noticed(world: World, what: str) -> None:
    filled(world.fake)
    world.backup()
    path = min((world.folder / "streams" / "orders" / "0").iterdir())
    data = bytearray(path.read_bytes())
    match what:
        case "flip":
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        case "cut":
            path.write_bytes(data[:-61])
        case "lose":
            path.unlink()
        case "manifest":
            manifest = world.folder / "streams" / "orders" / "manifest.json"
            manifest.write_text(manifest.read_text().replace('"next_offset": 20', '"next_offset": 30'))
    text = world.verify("--backup", str(world.folder), status=1)
    assert "1 problems" in text
    assert "orders" in text


def test_replicas_that_are_the_same(world: World) -> None:
    row = filled(world.fake)
    text = world.verify()
    assert f"partitions: 1, bytes: {sum(len(batch) for batch in row.batches[1:])}" in text
    assert text.endswith("all in order\n")


def test_replicas_that_differ(world: World) -> None:
    row = filled(world.fake, count=200)
    row.damaged = {2: 150}
    problems = json.loads(world.verify("--json", status=1).splitlines()[0])["problems"]
    assert len(problems) == 1
    assert problems[0].startswith("orders:0 differs in [")
    assert "node 2 has " in problems[0]


def test_a_replica_that_does_not_answer_is_a_problem(world: World) -> None:
    filled(world.fake)
    world.fake.dead.add(3)
    assert "node 3 could not be asked" in world.verify(status=1)


def test_records_removed_while_replicas_are_compared(world: World) -> None:
    row = filled(world.fake, count=200)
    asked = 0

    def trim(node: int, request: Any) -> None:
        nonlocal asked
        asked += getattr(request, "method", "") == "checksum"
        if asked == 4:
            row.start = 300

    world.fake.before = trim
    assert world.verify().endswith("all in order\n")
