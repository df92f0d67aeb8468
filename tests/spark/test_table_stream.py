"""A stream of a real cluster as a Delta table, over restarts, with a schema that grows."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.spark.world import Log
from tidelog.cli import main
from tidelog.spark.errors import DataLost
from tidelog.spark.tables import from_stream
from tidelog.spark.tables.delta import DeltaFolder, TableError
from tidelog.spark.tables.from_stream import land, open_stream_table

pytestmark = pytest.mark.xdist_group("spark")  # one cluster for all of them


def send(log: Log, topic: str, *records: object, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": log.bootstrap})
    for record in records:
        value = record if isinstance(record, bytes | None) else json.dumps(record).encode()
        producer.produce(topic, value, key=b"k", partition=partition)
    assert producer.flush(30) == 0


def landed(log: Log, topic: str, folder: Path) -> list[from_stream.Landed]:
    with log.cluster() as cluster:
        return list(land(open_stream_table(folder, topic), cluster, topic))


def rows(folder: Path) -> list[dict[str, object]]:
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def test_records_become_rows_and_new_fields_new_columns(tidelog_log: Log, tmp_path: Path):
    topic = tidelog_log.topic(partitions=2)
    send(tidelog_log, topic, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, b"no json")
    send(tidelog_log, topic, {"id": 3, "price": 1.5}, partition=1)
    first = landed(tidelog_log, topic, tmp_path / "t")
    assert [(step.records, step.new_columns, step.rescued) for step in first] == [(4, ("id", "name", "price"), 1)]
    send(tidelog_log, topic, {"id": "four", "tags": ["x"]})
    assert [step.new_columns for step in landed(tidelog_log, topic, tmp_path / "t")] == [("tags",)]
    assert landed(tidelog_log, topic, tmp_path / "t") == []
    found = rows(tmp_path / "t")
    assert [(row["_partition"], row["_offset"]) for row in found] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert [row["id"] for row in found] == [1, 2, None, None, 3]
    assert [row["price"] for row in found] == [None, None, None, None, 1.5]
    assert [row["tags"] for row in found] == [None, None, None, '["x"]', None]
    assert [row["_rescued"] for row in found] == [None, None, "no json", '{"id": "four"}', None]
    assert found[0]["_key"] == b"k"


def test_a_crash_around_any_commit_lands_every_record_once(tidelog_log: Log, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(from_stream, "ROWS_MAX", 1)
    topic = tidelog_log.topic(partitions=2)
    for partition in (0, 1):
        for number in range(3):  # batches of their own, so that there are several commits
            send(tidelog_log, topic, {"id": number, f"only{number}": True}, partition=partition)
    real = DeltaFolder.commit
    for after in (False, True, False, True):

        def dying(self, *given, _after=after, **more):
            if _after:
                real(self, *given, **more)
            raise KeyboardInterrupt

        with patch.object(DeltaFolder, "commit", dying), pytest.raises(KeyboardInterrupt):
            landed(tidelog_log, topic, tmp_path / "t")
    landed(tidelog_log, topic, tmp_path / "t")
    assert [(row["_partition"], row["_offset"], row["id"]) for row in rows(tmp_path / "t")] == [
        (partition, number, number) for partition in (0, 1) for number in range(3)
    ]


def test_a_stream_that_was_made_anew_is_not_mixed_with_the_old_one(tidelog_log: Log, tmp_path: Path):
    topic = tidelog_log.topic()
    send(tidelog_log, topic, {"id": 1}, {"id": 2})
    landed(tidelog_log, topic, tmp_path / "t")
    tidelog_log.delete(topic)
    again = tidelog_log.topic(name=f"{topic}-again")
    with pytest.raises(TableError, match="another table"):
        open_stream_table(tmp_path / "t", again)
    table = open_stream_table(tmp_path / "t", topic)
    with tidelog_log.cluster() as cluster, patch.object(table, "position", return_value=99):
        send(tidelog_log, again, {"id": 3})
        with pytest.raises(DataLost, match="made anew"):
            list(land(table, cluster, again))


def test_offsets_without_records_are_passed_over(tidelog_log: Log, tmp_path: Path):
    topic = tidelog_log.topic()
    send(tidelog_log, topic, {"id": 1})
    with patch.object(from_stream, "_records", lambda *_: iter(())):  # as the end of a transaction has none
        assert [step.records for step in landed(tidelog_log, topic, tmp_path / "t")] == [0]
    assert landed(tidelog_log, topic, tmp_path / "t") == []


def test_the_command_lands_a_stream_and_says_what_it_did(tidelog_log: Log, tmp_path: Path, capfd):
    topic = tidelog_log.topic()
    send(tidelog_log, topic, {"id": 1}, b"?")
    command = ["table", "from-stream", topic, "--table", str(tmp_path / "t"), "--bootstrap", tidelog_log.bootstrap]
    assert main([*command, "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["records"], said["new_columns"], said["rescued"]) == (2, ["id"], 1)
    assert main(command) == 0
    assert capfd.readouterr().out == "up to date\n"
