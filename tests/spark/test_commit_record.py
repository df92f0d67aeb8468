"""The sink's commit record: replaced as a whole, and on disk before anybody relies on it."""

import os
from pathlib import Path

import pytest

from tidelog.spark import commit_record
from tidelog.spark.commit_record import CommitRecord, LaneReport, Written, folder_of, load, load_or_begin, save
from tidelog.spark.errors import BadCommitRecord, BadOption
from tidelog.spark.kernel.options import WriteOptions, write_options

RECORD = CommitRecord(
    "id", 1, 3, 2, 1, "query", 7, ('{"t": {"0": 5}}',), {"out": 2}, {0: {("out", 1): Written(10, 20)}, 4: {}}, 5
)


def options(**more: str) -> WriteOptions:
    return write_options({"kafka.bootstrap.servers": "h:1", **more})


def test_what_was_saved_is_loaded(tmp_path: Path):
    save(tmp_path / "new", RECORD)
    assert load(tmp_path / "new") == RECORD


def test_an_identity_is_made_once_and_is_on_disk_before_it_is_used(tmp_path: Path):
    assert load(tmp_path) is None
    first = load_or_begin(tmp_path, 55)
    assert (first.begun_ms, first.batch_id) == (55, -1)
    assert load_or_begin(tmp_path, 99) == first


def test_a_record_is_synced_before_it_has_its_name_and_so_is_its_folder(tmp_path: Path, monkeypatch):
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename
    monkeypatch.setattr(
        commit_record.os, "fsync", lambda fd: (steps.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))
    )
    monkeypatch.setattr(Path, "rename", lambda old, new: (steps.append("rename"), rename(old, new))[1])
    save(tmp_path, RECORD)
    assert steps == [str(tmp_path / "commit.json.new"), "rename", str(tmp_path)]


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"format": 2}', b"[]"])
def test_a_record_that_cannot_be_read_is_never_taken_for_none(tmp_path: Path, content: bytes):
    (tmp_path / "commit.json").write_bytes(content)
    with pytest.raises(BadCommitRecord, match=r"commit.json cannot be read"):
        load_or_begin(tmp_path, 1)


def test_a_batch_is_known_by_query_and_number():
    assert RECORD.has("query", 7)
    assert RECORD.has("query", 3)
    assert not RECORD.has("query", 8)
    assert not RECORD.has("another checkpoint", 0)


def test_the_next_record_adds_what_the_lanes_have_written():
    reports = [
        LaneReport(0, "query", 3, {("out", 0): Written(4, 9)}, {"out": 3}, left_out=2),
        LaneReport(1, "query", 3, {("out", 1): Written(6, 30)}, {"out": 2}),
    ]
    after = RECORD.after(8, reports, ["end"], 100)
    assert (after.generation, after.batch_id, after.epoch, after.committed_ms) == (4, 8, 1, 100)
    assert after.lanes[0] == {("out", 0): Written(4, 9), ("out", 1): Written(10, 20)}
    assert after.lanes[1] == {("out", 1): Written(6, 30)}
    assert (after.partition_counts, after.source_offsets, after.left_out) == ({"out": 3}, ("end",), 7)


def test_a_new_checkpoint_is_a_new_epoch():
    after = RECORD.after(0, [LaneReport(0, "another", 3, {}, {})], [], 100)
    assert (after.epoch, after.query_id, after.batch_id) == (2, "another", 0)


def test_two_queries_on_one_record_are_found_out():
    with pytest.raises(BadCommitRecord, match="a commitLocation of its own"):
        RECORD.after(8, [LaneReport(0, "query", 2, {}, {})], [], 100)


def test_where_the_record_lies():
    assert folder_of(options(checkpointLocation="/a/b")) == Path("/a/b/tidelog-sink")
    assert folder_of(options(checkpointLocation="file:///a/b%20c#d")) == Path("/a/b%20c#d/tidelog-sink")
    assert folder_of(options(checkpointLocation="s3a://x/y", commitLocation="/c")) == Path("/c")
    with pytest.raises(BadOption, match="not on a local disk; give commitLocation"):
        folder_of(options(checkpointLocation="hdfs://x/y"))
    with pytest.raises(BadOption, match="give checkpointLocation"):
        folder_of(options())


def test_source_offsets_are_those_that_spark_has_logged(tmp_path: Path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":5}}')
    assert commit_record.logged_source_offsets(options(checkpointLocation=str(tmp_path)), 4) == ('{"t":{"0":5}}',)
    assert commit_record.logged_source_offsets(options(checkpointLocation=str(tmp_path)), 5) == ()
    assert commit_record.logged_source_offsets(options(checkpointLocation="s3a://x"), 4) == ()
