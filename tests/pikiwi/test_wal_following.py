"""Readers of other processes beside a live writer, and what a restart finds: the WAL is there to be read."""

import subprocess
import sys
from pathlib import Path

from tests.pikiwi.wal_world import START, all_records, item, items, opened, record, segment_paths
from tidelog.pikiwi.checkpoint import CheckpointFile, Point
from tidelog.pikiwi.wal import WalReader

RECORDS = 20_000

FOLLOWER = """
import sys, time
from pathlib import Path
from tidelog.pikiwi.wal import WalReader
reader = WalReader(Path(sys.argv[1]))
last = int(sys.argv[2])
deadline = time.monotonic() + 60
place = reader.first()
seen = 0
print("ready", flush=True)
while seen < last and time.monotonic() < deadline:
    end = reader.advance(place, 700, 1 << 20)
    for record in reader.read(place, end):
        assert record.seq == seen + 1, (record.seq, seen)
        assert record.payload == bytes([record.seq % 251]) * 20
        seen = record.seq
    assert seen == end.seq, (seen, end)
    place = end
print(seen)
"""


def test_a_follower_sees_every_record_once_while_segments_come(tmp_path: Path) -> None:
    with opened(tmp_path, 64 << 10) as wal:
        wal.reset(START)
        follower = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(tmp_path), str(RECORDS)], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        for first in range(1, RECORDS, 50):
            wal.append(7, items(first, first + 49))
            wal.sync()
        out, _ = follower.communicate(timeout=60)

    assert follower.returncode == 0
    assert out.strip() == str(RECORDS)
    assert len(segment_paths(tmp_path)) > 20


def test_defect_2_what_was_acknowledged_to_the_master_is_read_again_from_ackcp_after_a_restart(tmp_path: Path) -> None:
    """The Go tool writes a WAL that it never reads: a restart asks the master from AckCP, which may be purged there."""
    file = CheckpointFile(tmp_path / "checkpoint.json", "source")
    with opened(tmp_path / "wal") as wal:
        wal.reset(START)
        wal.append(7, items(1, 100))
        wal.sync()
        assert wal.durable is not None
        file.advance_durable({"db0": wal.durable}, {"db0": 7}, "lineage")
        file.advance_ack("db0", 0, Point(40, item(40)[0]))
        wal.append(7, items(101, 120))
        wal.sync()  # acknowledged to the master; the checkpoint is not so far yet

    checkpoint = file.load()
    assert checkpoint is not None
    ack = checkpoint.database("db0").ack_cp
    assert ack is not None
    with opened(tmp_path / "wal") as wal:
        assert wal.last_position == item(120)[0], "the master is asked for what follows this, and nothing before it"
        undelivered = list(wal.read(wal.seek(ack.position)))
    assert undelivered == [record(number) for number in range(41, 121)]
    assert undelivered == all_records(tmp_path / "wal")[40:]


def test_cleaning_never_takes_what_a_pipeline_has_not_delivered(tmp_path: Path) -> None:
    reader = WalReader(tmp_path)
    with opened(tmp_path, retain=1) as wal:
        wal.reset(START)
        delivered = 0
        for first in range(1, 1000, 37):
            wal.append(7, items(first, first + 36))
            wal.sync()
            wal.clean(item(delivered)[0] if delivered else START)
            for each in reader.read(reader.after(delivered)):
                assert each.seq == delivered + 1
                delivered = each.seq
        assert delivered == wal.last_seq
        assert wal.segment_count < 4
