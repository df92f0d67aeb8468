"""Messages to test with, made from the tables themselves: a Hypothesis strategy for every message and version.

A value is drawn for each field that the version has; the rest keeps its default, so a message survives a round trip
unchanged. Values prefer the edges of their type. Two kinds of field are narrowed, because the oracles know less than
the wire can say: error codes are Kafka's, and times are ones that Python's datetime can hold.
"""

from functools import cache
from typing import Any

import hypothesis.strategies as st

from tidelog.wire.codec_fields import Field, Kind, fields_of
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import APIS, PRIVATE_APIS, Api

LIST_MAX = 2  # elements; depth multiplies them

# Every (request or response, version) that is spoken, as test parameters.
MESSAGES: list[tuple[Api, type[Any], int]] = [
    (api, cls, version)
    for api in (*APIS.values(), *PRIVATE_APIS.values())
    for cls in (api.request, api.response)
    for version in range(api.min_version, api.max_version + 1)
]
MESSAGE_IDS = [f"{cls.__name__}-{version}" for _, cls, version in MESSAGES]

_INTEGER_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])
_TEXT = st.sampled_from(["", "a", "orders", "größe-λ", "漢字", "x" * 126, "x" * 127, "x" * 130, "\x00"]) | st.text(
    max_size=4
)
_BYTES = st.sampled_from([b"", b"\x00", b"\xff" * 126, b"y" * 127, b"z" * 300]) | st.binary(max_size=6)
_MILLISECONDS_MAX = 4_000_000_000_000  # year 2096


@cache
def messages(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Objects of a table as they can be sent in a version."""
    present = [field for field in fields_of(cls) if field.present(version)]
    return st.builds(cls, **{field.name: _values(field, version) for field in present})


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    match field.kind:
        case Kind.FIXED:
            values = _fixed(field)
        case Kind.UUID:
            values = st.uuids()
        case Kind.STRING:
            values = _TEXT
        case Kind.BYTES | Kind.RECORDS:
            values = _BYTES
        case Kind.ARRAY:
            values = st.lists(_values(field.element, version), max_size=LIST_MAX)
        case Kind.STRUCT:
            values = messages(field.struct, version)
    if field.nullable(version):
        return st.none() | values
    if field.tag is not None and field.kind is Kind.STRUCT:
        # An object in which every field has its default says no more than its absence, and the oracles leave it out.
        return st.none() | values.filter(lambda value: value != field.struct())
    return values


def _fixed(field: Field) -> st.SearchStrategy[Any]:
    if field.code == "?":
        return st.booleans()
    if field.name.endswith("error_code"):
        return _ERROR_CODES
    if field.code == "H":
        return st.sampled_from([0, 1, 9092, 0xFFFF]) | st.integers(0, 0xFFFF)
    bits = _INTEGER_BITS[field.code]
    if bits == 64 and field.name.endswith("_ms"):
        return st.sampled_from([-1, 0, 1, 1_700_000_000_123, _MILLISECONDS_MAX])
    top = 1 << (bits - 1)
    return st.sampled_from([0, 1, -1, 2, top - 1, -top]) | st.integers(-top, top - 1)
