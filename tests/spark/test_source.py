"""Batch reads and writes through Spark, and the official connector beside ours: the same rows, both ways."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from tests.e2e.clients.environments import Unavailable
from tidelog.spark.kernel.decode import RAW_SCHEMA, RECORD_SCHEMA, Place, decode_records
from tidelog.spark.kernel.event_rows import EVENT_SCHEMA, TYPED_SCHEMA

from .jars import connector_jars
from .pikiwi_world import Source, shop
from .world import Log, numbered

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]  # one session is enough

ROWS = 400
SQL = f"""
    select cast(id % 7 as string) key, format_string('row-%06d', id) value, cast(id % 3 as int) partition,
           timestamp_millis(1700000000000 + id) timestamp,
           if(id % 2 = 0, array(struct('a' as key, cast(cast(id as string) as binary) as value)), null) headers
    from range(0, {ROWS}, 1, 1)
"""


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tidelog_log: Log) -> str:
    """A topic of three partitions, written by our batch sink."""
    topic = tidelog_log.topic(3)
    write(spark.sql(SQL), tidelog_log, topic)
    return topic


def write(rows: DataFrame, log: Log, topic: str, form: str = "tidelog", **options: str) -> None:
    given = {"kafka.bootstrap.servers": log.bootstrap, "topic": topic, **options}
    rows.write.format(form).options(**given).mode("append").save()


def read(spark: SparkSession, log: Log, form: str = "tidelog", **options: str) -> DataFrame:
    return spark.read.format(form).options(**{"kafka.bootstrap.servers": log.bootstrap, **options}).load()


def offsets(rows: DataFrame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(found[partition]) for partition in sorted(found)}


@pytest.mark.parametrize("schema", [RECORD_SCHEMA, RAW_SCHEMA, EVENT_SCHEMA, TYPED_SCHEMA])
def test_arrow_schemas_are_those_that_spark_demands(schema: Any):
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema


def test_what_was_written_is_read(spark: SparkSession, tidelog_log: Log, filled: str):
    rows = read(spark, tidelog_log, subscribe=filled, includeHeaders="true")
    assert rows.count() == ROWS
    same = rows.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "partition", "timestamp", "headers"
    )
    assertDataFrameEqual(same, spark.sql(SQL))
    assert offsets(rows) == {part: list(range(len(range(part, ROWS, 3)))) for part in range(3)}


def test_ranges_columns_and_parts_are_chosen_by_options(spark: SparkSession, tidelog_log: Log, filled: str):
    chosen = {
        "startingOffsets": f'{{"{filled}": {{"0": 10, "2": -2}}}}',
        "endingOffsets": f'{{"{filled}": {{"0": 20, "2": 5}}}}',
    }
    rows = read(
        spark, tidelog_log, assign=f'{{"{filled}": [0, 2]}}', columns="offset,partition", minPartitions="4", **chosen
    )
    assert rows.columns == ["offset", "partition"]
    assert rows.rdd.getNumPartitions() == 4
    assert offsets(rows) == {0: list(range(10, 20)), 2: list(range(5))}
    by_time = read(
        spark,
        tidelog_log,
        subscribePattern=f"{filled[:-1]}[{filled[-1]}]",
        startingTimestamp=str(1_700_000_000_000 + ROWS - 3),
    )
    assert {row.value.decode() for row in by_time.collect()} == {row.decode() for row in numbered(ROWS - 3, ROWS)}
    times = {"startingOffsetsByTimestamp": f'{{"{filled}": {{"1": 1700000000100}}}}'}
    assert offsets(read(spark, tidelog_log, assign=f'{{"{filled}": [1]}}', **times)) == {1: list(range(33, 133))}


def test_raw_rows_hold_whole_batches(spark: SparkSession, tidelog_log: Log, filled: str):
    rows = read(spark, tidelog_log, subscribe=filled, decode="raw").collect()
    values = sorted(
        record["value"]
        for row in rows
        for batch in decode_records(
            row.payload, Place(row.topic, row.partition, row.offset, row.endOffset), RECORD_SCHEMA
        )
        for record in batch.to_pylist()
    )
    assert values == numbered(0, ROWS)


def test_an_empty_topic_has_no_rows(spark: SparkSession, tidelog_log: Log):
    assert read(spark, tidelog_log, subscribe=tidelog_log.topic(2)).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "startingOfsets": "latest"}, "no option startingofsets"),
        ({"subscribe": "t", "decode": "events"}, "decode: 'events'; there are raw, record, event, typed"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "a batch query has no triggers"),
    ],
)
def test_wrong_options_are_told_before_anything_is_read(
    spark: SparkSession, tidelog_log: Log, options: dict, message: str
):
    with pytest.raises(PySparkException, match=message):
        read(spark, tidelog_log, **options).collect()


def test_a_log_is_not_overwritten(spark: SparkSession, tidelog_log: Log, filled: str):
    with pytest.raises(PySparkException, match="a log cannot be overwritten"):
        spark.sql("select 'x' value").write.format("tidelog").options(
            **{"kafka.bootstrap.servers": tidelog_log.bootstrap, "topic": filled}
        ).mode("overwrite").save()


def test_rows_name_their_topics_and_times(spark: SparkSession, tidelog_log: Log):
    first, second = tidelog_log.topic(), tidelog_log.topic()
    rows = spark.sql(f"select 'a' value, '{first}' topic union all select 'b', '{second}'").coalesce(1)
    before = datetime.now(UTC)
    rows.write.format("tidelog").option("kafka.bootstrap.servers", tidelog_log.bootstrap).mode("append").save()
    found = {topic: tidelog_log.rows(topic)[0] for topic in (first, second)}
    assert {topic: [row["value"] for row in rows] for topic, rows in found.items()} == {first: [b"a"], second: [b"b"]}
    for row in found[first]:
        assert isinstance(row["timestamp"], datetime)
        assert abs((row["timestamp"] - before).total_seconds()) < 3600  # this hour, not 1970


# --- the official connector -------------------------------------------------------------------------------------------


@pytest.fixture
def official() -> str:
    try:
        connector_jars()
    except Unavailable as reason:
        pytest.skip(f"no spark-sql-kafka-0-10: {reason}")
    return "kafka"


def test_the_official_connector_reads_the_same_rows(spark: SparkSession, tidelog_log: Log, filled: str, official: str):
    ours = read(spark, tidelog_log, subscribe=filled, includeHeaders="true")
    theirs = read(spark, tidelog_log, official, subscribe=filled, includeHeaders="true")
    assertSchemaEqual(ours.schema, theirs.schema)
    assertDataFrameEqual(ours, theirs)


def test_the_official_connector_writes_to_the_same_partitions(spark: SparkSession, tidelog_log: Log, official: str):
    """Keys decide in both, by the same hash."""
    mine, yours = tidelog_log.topic(5), tidelog_log.topic(5)
    rows = spark.sql("select format_string('key-%d', id * 7919) key, cast(id as string) value from range(0, 300, 1, 1)")
    write(rows, tidelog_log, mine)
    write(rows, tidelog_log, yours, official)
    assert tidelog_log.values(mine) == tidelog_log.values(yours)


def test_the_official_connector_streams_through_the_log(
    spark: SparkSession, tidelog_log: Log, filled: str, official: str, tmp_path: Path
):
    copied = tidelog_log.topic(3)
    options = {"kafka.bootstrap.servers": tidelog_log.bootstrap, "subscribe": filled, "startingOffsets": "earliest"}
    rows = spark.readStream.format(official).options(**options).load().select("key", "value", "partition")
    sink = {"kafka.bootstrap.servers": tidelog_log.bootstrap, "checkpointLocation": str(tmp_path), "topic": copied}
    query = rows.writeStream.format(official).options(**sink).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert tidelog_log.values(copied) == tidelog_log.values(filled)
    wanted = {"kafka.bootstrap.servers": tidelog_log.bootstrap, "subscribe": filled, "startingOffsets": "latest"}
    assert spark.readStream.format("tidelog").options(**wanted).load().isStreaming


def streamed(rows: DataFrame, spark: SparkSession, checkpoint: Path) -> DataFrame:
    """All that a stream gives until it has caught up."""
    name = f"streamed_{checkpoint.name}"
    writer = rows.writeStream.format("memory").queryName(name).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return spark.table(name)


def test_the_official_connector_streams_the_same_rows_and_logs_the_same_offsets(
    spark: SparkSession, tidelog_log: Log, filled: str, official: str, tmp_path: Path
):
    options = {"kafka.bootstrap.servers": tidelog_log.bootstrap, "subscribe": filled, "startingOffsets": "earliest"}
    options |= {"includeHeaders": "true", "maxOffsetsPerTrigger": "50"}
    found = {
        form: streamed(spark.readStream.format(form).options(**options).load(), spark, tmp_path / form)
        for form in ("tidelog", official)
    }
    assertSchemaEqual(found["tidelog"].schema, found[official].schema)
    assert found["tidelog"].count() == ROWS
    assertDataFrameEqual(found["tidelog"], found[official])
    logs = {form: (tmp_path / form / "offsets").glob("[0-9]*") for form in found}
    ends = {form: [json.loads(path.read_text().splitlines()[-1]) for path in sorted(logs[form])] for form in found}
    assert ends["tidelog"] == ends[official]


def test_a_topic_of_events_is_read_as_events_or_typed_in_batches_and_streams(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path
):
    source = Source(tmp_path)
    source.begin()
    source.write(shop(200))
    source.close()
    events = source.events()
    topic = tidelog_log.topic(1)
    rows = spark.createDataFrame([(event.key, event.value) for event in events], "key BINARY, value BINARY").coalesce(1)
    write(rows, tidelog_log, topic)
    options = {"kafka.bootstrap.servers": tidelog_log.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    found = {}
    for decode in ("event", "typed"):
        batch = read(spark, tidelog_log, **options, decode=decode).orderBy("recordOffset").collect()
        stream = spark.readStream.format("tidelog").options(**options, decode=decode).load()
        assert streamed(stream, spark, tmp_path / decode).orderBy("recordOffset").collect() == batch
        assert [(row.db, row.filenum, row.offset) for row in batch] == [
            ("db0", *position) for position, _ in source.written["db0"]
        ]
        found[decode] = batch
    assert [(bytes(row.key), bytes(row.value)) for row in found["event"]] == [
        (event.key, event.value) for event in events
    ]
    ops = [json.loads(event.value)["op"] for event in events]
    assert [(row.op, bytes(row.args[0]).lower().decode()) for row in found["typed"]] == [(op, op) for op in ops]
