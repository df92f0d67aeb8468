"""Options, offsets and ranges: tables of what goes in and what must come out."""

import pytest

from tidelog.spark.decoders import schema_of
from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.offsets import EARLIEST, LATEST, from_tree, to_tree
from tidelog.spark.kernel.options import Decode, Positions, Subscription, TierOptions, read_options, write_options
from tidelog.spark.kernel.ranges import OffsetRange, limit, ranges_between, split
from tidelog.wire.compression import Codec

HERE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def read(streaming: bool | None = None, **more: str):
    return read_options({**HERE, **more}, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source():
    options = read()
    assert options.bootstrap == (("h", 1),)
    assert options.subscription == Subscription(topics=("t",))
    assert (options.starting, options.ending) == (None, Positions(everywhere=LATEST))
    assert (options.fail_on_data_loss, options.include_headers, options.decode) == (True, False, Decode.RECORD)
    assert (options.rows_per_trigger_max, options.partitions_min, options.columns) == (None, None, None)


def test_the_store_and_what_its_client_is_told():
    client = {"tier.option.Region": "r", "tier.option.secret_access_key": "s"}
    options = read(None, **{"tier.path": "s3://b/p"}, **client)
    assert options.tier == TierOptions("s3://b/p", {"region": "r", "secret_access_key": "s"}, None, 64 << 20)
    assert "secret" not in repr(options)
    assert read().tier is None


def test_names_may_have_any_case():
    options = read(STARTINGOFFSETS="earliest", minpartitions="3", failOnDataLoss="False")
    assert (options.starting, options.partitions_min, options.fail_on_data_loss) == (Positions(everywhere=-2), 3, False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "latest"}, Positions(everywhere=LATEST)),
        ({"startingOffsets": '{"t": {"0": 5, "1": -2}}'}, Positions(offsets={("t", 0): 5, ("t", 1): EARLIEST})),
        ({"startingTimestamp": "1700"}, Positions(time_ms=1700)),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 9}}'}, Positions(times={("t", 0): 9})),
        ({"startingTimestamp": "7", "startingOffsets": "latest"}, Positions(time_ms=7)),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 9}}', "startingOffsets": "latest"},
            Positions(times={("t", 0): 9}),
        ),
    ],
)
def test_where_to_begin(given, expected):
    assert read(**given).starting == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "a, b,a"}, Subscription(topics=("a", "b"))),
        ({"subscribePattern": "a.*"}, Subscription(pattern="a.*")),
        ({"assign": '{"a": [1, 0]}'}, Subscription(partitions=(("a", 0), ("a", 1)))),
    ],
)
def test_what_to_read(given, expected):
    assert read_options({"kafka.bootstrap.servers": "h:1", **given}, streaming=None).subscription == expected


@pytest.mark.parametrize(
    ("streaming", "given", "message"),
    [
        (None, {"startingOfsets": "latest"}, "no option startingofsets; it has .*startingOffsets"),
        (None, {"kafka.group.id": "g"}, "no option kafka.group.id"),
        (None, {"subscribePattern": "x"}, "exactly one of"),
        (None, {"subscribe": " , "}, "names no topic"),
        (None, {"kafka.bootstrap.servers": "h"}, "is not HOST:PORT"),
        (None, {"kafka.bootstrap.servers": ""}, "is missing"),
        (None, {"startingOffsets": "newest"}, "is not JSON"),
        (None, {"startingOffsets": '{"t": {"0": -3}}'}, "-3 is no offset"),
        (None, {"startingOffsets": '{"t": {"x": 3}}'}, "no partition"),
        (None, {"startingOffsets": '{"t": {"0": true}}'}, "no partition"),
        (None, {"startingOffsets": '{"t": 3}'}, "for topic t"),
        (None, {"startingOffsets": "[]"}, "expected"),
        (None, {"endingOffsets": "earliest"}, "cannot be earliest"),
        (None, {"endingOffsets": '{"t": {"0": -2}}'}, "cannot be earliest"),
        (None, {"tier.path": "/folder"}, "tier.path: '/folder' is no store; write file:///folder"),
        (None, {"tier.rangeBytes": "100000"}, "tier.rangeBytes: it means nothing without tier.path"),
        (None, {"tier.option.region": "r"}, "region: it means nothing without tier.path"),
        (None, {"tier.path": "file:///f", "tier.rangeBytes": "1"}, "not a whole number from 65536 on"),
        (None, {"kafka.security.protocol": "TLS"}, "there are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (None, {"kafka.sasl.mechanism": "PLAIN"}, "it means nothing with kafka.security.protocol=PLAINTEXT"),
        (None, {"kafka.ssl.key.password": "p"}, "it means nothing with kafka.security.protocol=PLAINTEXT"),
        (None, {"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism: it is missing"),
        (None, {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "GSSAPI; there are PLAIN"),
        (None, {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "jaas.config: write"),
        (None, {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "f.jks"}, "only PEM can be read"),
        (None, {"kafka.ssl.truststore.password": "p"}, "no option kafka.ssl.truststore.password"),
        (None, {"startingTimestamp": "now"}, "not a whole number"),
        (None, {"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "is no time"),
        (None, {"minPartitions": "0"}, "from 1 on"),
        (None, {"failOnDataLoss": "no"}, "neither true nor false"),
        (None, {"decode": "json"}, "there are raw, record, event, typed"),
        (None, {"columns": "key,key"}, "or one twice"),
        (True, {"endingOffsets": "latest"}, "has no end"),
        (False, {"maxOffsetsPerTrigger": "5"}, "no triggers"),
    ],
)
def test_what_is_wrong_is_refused_by_name(streaming, given, message):
    with pytest.raises(BadOption, match=message):
        read(streaming, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [("[0]", "expected"), ('{"t": []}', "a list of partitions"), ('{"t": [-1]}', "no partition"), ("{", "not JSON")],
)
def test_a_wrong_assignment_is_refused(given, message):
    with pytest.raises(BadOption, match=message):
        read_options({"kafka.bootstrap.servers": "h:1", "assign": given}, streaming=None)


def test_a_wrong_pattern_is_refused():
    with pytest.raises(BadOption, match="no regular expression"):
        read_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, streaming=None)


def test_columns_choose_from_the_schema():
    assert schema_of(read()).names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert schema_of(read(includeHeaders="true")).names[-1] == "headers"
    assert schema_of(read(columns="offset, key")).names == ["offset", "key"]
    assert schema_of(read(decode="raw")).names == ["topic", "partition", "offset", "endOffset", "payload"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": "payload"}, "there is no payload"),
        ({"columns": "headers"}, "there is no headers"),  # unless includeHeaders
        ({"decode": "event", "columns": "payload"}, "there is no payload; there are key, value, broadcast"),
        ({"decode": "typed", "columns": "value"}, "there is no value; there are db, seq"),
    ],
)
def test_what_the_source_does_not_have_is_refused(given, message):
    with pytest.raises(BadOption, match=message):
        schema_of(read(**given))


def test_options_of_the_sink():
    options = write_options({"kafka.bootstrap.servers": "h:1,[::1]:2", "kafka.compression.type": "LZ4"})
    assert options.bootstrap == (("h", 1), ("::1", 2))
    assert (options.topic, options.codec) == (None, Codec.LZ4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "t"}, "no option subscribe"),
        ({"path": "/x"}, "writes to topics"),
        ({"kafka.compression.type": "brotli"}, "there are none, gzip"),
        ({"kafka.delivery.timeout.ms": "0"}, "from 1 on"),
    ],
)
def test_what_is_wrong_with_the_sinks_options_is_refused(given, message):
    with pytest.raises(BadOption, match=message):
        write_options({"kafka.bootstrap.servers": "h:1", **given})


def test_offsets_go_through_json_as_sparks_kafka_source_writes_them():
    offsets = {("b", 10): 7, ("b", 2): 5, ("a", 0): 1}
    assert to_tree(offsets) == {"a": {"0": 1}, "b": {"2": 5, "10": 7}}
    assert from_tree(to_tree(offsets)) == offsets


A, B, C = ("t", 0), ("t", 1), ("u", 0)


@pytest.mark.parametrize(
    ("start", "latest", "rows_max", "ends"),
    [
        ({A: 0}, {A: 10}, 100, {A: 10}),
        ({A: 0}, {A: 10}, 4, {A: 4}),
        ({A: 0, B: 0}, {A: 90, B: 10}, 10, {A: 9, B: 1}),
        ({A: 0, B: 0}, {A: 999, B: 1}, 10, {A: 9, B: 1}),  # a small one does not starve
        ({A: 5, B: 7}, {A: 5, B: 107}, 10, {A: 5, B: 17}),  # nothing waits in A
        ({A: 5, B: 0}, {A: 3, B: 100}, 10, {A: 3, B: 10}),  # A was made anew
        ({A: 0, B: 0, C: 0}, {A: 5, B: 5, C: 5}, 1, {A: 1, B: 1, C: 1}),
    ],
)
def test_a_limit_is_shared_in_proportion(start, latest, rows_max, ends):
    assert limit(start, latest, rows_max) == ends


def test_ranges_leave_out_what_is_empty_or_backwards():
    assert ranges_between({A: 1, B: 5, C: 9}, {A: 4, B: 5, C: 3}) == [OffsetRange("t", 0, 1, 4)]


@pytest.mark.parametrize(
    ("sizes", "parts_min", "expected"),
    [
        ([10, 10], None, [(0, 0, 10), (1, 0, 10)]),
        ([10, 10], 2, [(0, 0, 10), (1, 0, 10)]),
        ([10], 4, [(0, 0, 2), (0, 2, 5), (0, 5, 7), (0, 7, 10)]),
        ([90, 10], 5, [(0, 0, 22), (0, 22, 45), (0, 45, 67), (0, 67, 90), (1, 0, 10)]),
        ([2], 5, [(0, 0, 1), (0, 1, 2)]),
        ([], 3, []),
    ],
)
def test_ranges_are_split_into_enough_parts(sizes, parts_min, expected):
    ranges = [OffsetRange("t", number, 0, size) for number, size in enumerate(sizes)]
    assert split(ranges, parts_min) == [OffsetRange("t", *part) for part in expected]
