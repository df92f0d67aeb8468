"""Records of JSON as columns: types, growth, and what becomes of values that do not fit."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tidelog.spark.tables import json_columns
from tidelog.spark.tables.json_columns import columns_of


def landed(
    *values: bytes | None, **known: pa.DataType
) -> tuple[dict[str, list[Any]], list[Any], dict[str, pa.DataType]]:
    table, rescued = columns_of(values, known)
    return table.to_pydict(), rescued.to_pylist(), {field.name: field.type for field in table.schema}


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (b'{"a": true}', pa.bool_(), True),
        (b'{"a": -7}', pa.int64(), -7),
        (b'{"a": 9223372036854775807}', pa.int64(), (1 << 63) - 1),
        (b'{"a": 1.5}', pa.float64(), 1.5),
        (b'{"a": 1e3}', pa.float64(), 1000.0),
        ('{"a": "ü\\u0000"}'.encode(), pa.string(), "ü\0"),
        (b'{"a": {"b": [1, null]}}', pa.string(), '{"b": [1, null]}'),
        (b'{"a": []}', pa.string(), "[]"),
    ],
)
def test_a_new_field_is_a_column_of_its_first_value_s_type(value: bytes, kind: pa.DataType, stored: object):
    columns, rescued, types = landed(value)
    assert (columns, rescued, types) == ({"a": [stored]}, [None], {"a": kind})


def test_whole_and_other_numbers_in_the_first_batch_make_a_double():
    columns, rescued, types = landed(b'{"a": 1}', b'{"a": 2.5}', b'{"a": 3}')
    assert (columns["a"], types["a"], rescued) == ([1.0, 2.5, 3.0], pa.float64(), [None] * 3)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b'{"a": "text"}', pa.int64()),
        (b'{"a": 1.5}', pa.int64()),
        (b'{"a": true}', pa.int64()),
        (b'{"a": 1}', pa.bool_()),
        (b'{"a": 7}', pa.string()),
        (b'{"a": 9007199254740993}', pa.float64()),
        (b'{"a": 9223372036854775808}', pa.int64()),
    ],
)
def test_a_value_of_another_type_is_rescued_and_the_rest_of_its_record_stays(value: bytes, kind: pa.DataType):
    record = value[:-1] + b', "b": "kept"}'
    columns, rescued, types = landed(record, a=kind)
    assert columns == {"a": [None], "b": ["kept"]}
    assert types["a"] == kind
    assert json.loads(rescued[0]) == json.loads(value)


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a=b", "x;y", "p(q)", "t\tu", "_offset", "_RESCUED", "\ud800"])
def test_a_name_that_no_column_can_have_is_rescued(name: str):
    columns, rescued, _ = landed(json.dumps({name: 1, "fine": 2}).encode())
    assert columns == {"fine": [2]}
    assert json.loads(rescued[0]) == {name: 1}


def test_names_that_differ_in_case_only_cannot_both_be_columns():
    columns, rescued, _ = landed(b'{"Id": 1}', b'{"id": 2}')
    assert columns == {"Id": [1, None]}
    assert rescued == [None, '{"id": 2}']


@pytest.mark.parametrize("value", [b"no json", b"[1, 2]", b"7", b'{"a": NaN}', b'{"a": 1', b"", b"[" * 100_000])
def test_a_record_that_is_no_object_is_rescued_as_it_is(value: bytes):
    columns, rescued, _ = landed(value)
    assert (columns, rescued) == ({}, [value.decode()])


def test_bytes_that_are_no_text_are_rescued_as_base64():
    assert landed(b"\xff\x00")[1] == ['{"base64": "/wA="}']


def test_a_record_without_a_value_is_a_row_of_nulls():
    assert landed(None, a=pa.int64())[:2] == ({"a": [None]}, [None])


def test_nulls_make_no_column_and_half_a_surrogate_pair_is_no_text():
    columns, rescued, _ = landed(b'{"a": null, "b": "\\ud800"}')
    assert columns == {"b": [None]}
    assert json.loads(rescued[0]) == {"b": "\ud800"}


def test_fields_beyond_the_limit_are_rescued(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_columns, "COLUMNS_MAX", 2)
    columns, rescued, _ = landed(b'{"a": 1, "b": 2, "c": 3}')
    assert columns == {"a": [1], "b": [2]}
    assert rescued == ['{"c": 3}']
