"""Independent implementations of Kafka's messages, asked what they make of our bytes.

kafka-python   interprets Kafka's schemas; it reads and writes all versions, also those that Kafka 4 dropped
kio            generated from Kafka's schemas; typed, so it also knows which integers are errors, times and durations
handwritten    kafka-python's older structs, written by hand when the versions that Kafka 4 dropped were new

An oracle reads a message into its own objects and writes those again. When what it read are our values, and what it
writes are our bytes, both sides encode and decode the same language. Its values are made comparable by `plain` forms:
nested dictionaries of plain Python values, by our field names.
"""

import datetime
import importlib
import io
import pkgutil
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tidelog.wire.codec_fields import Field, Kind, fields_of
from tidelog.wire.messages import OPERATIONS_NOT_ASKED, Api

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas in a way that Python deprecates
    from kafka.protocol.api_message import ApiMessage

    _KAFKA_PYTHON = [
        importlib.import_module(f"kafka.protocol.{package}")
        for package in ("admin", "consumer", "metadata", "producer")
    ]

KAFKA_PYTHON_CLASSES: dict[str, Any] = {name: cls for module in _KAFKA_PYTHON for name, cls in vars(module).items()}

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


class Reading(NamedTuple):
    """What an oracle made of a message: its values in plain form, and the bytes it writes for them."""

    values: dict[str, Any]
    written: bytes


class Oracle(NamedTuple):
    knows: Callable[[Api, type[Any], int], bool]
    ask: Callable[[Api, type[Any], int, bytes], Reading]


def plain(cls: type[Any], version: int, message: Any) -> dict[str, Any]:
    """Our object, or an oracle's object for the same message, as nested dictionaries."""
    return {
        field.name: _plain_value(field, version, _attribute(message, field.name))
        for field in fields_of(cls)
        if field.present(version)
    }


def _attribute(message: Any, name: str) -> Any:
    # kio leaves the unit out of a name where the type carries it; kafka-python shortens some names.
    for candidate in (name, name.removesuffix("_ms"), "authorized_operations"):
        if hasattr(message, candidate):
            return getattr(message, candidate)
    raise AttributeError(f"{type(message).__name__} has no field for {name}")


def _plain_value(field: Field, version: int, value: Any) -> Any:
    match field.kind:
        case Kind.FIXED:
            return _plain_number(field, value)
        case _ if value is None:
            return None
        case Kind.STRUCT:
            made = plain(field.struct, version, value)
            absent = field.tag is not None and made == plain(field.struct, version, field.struct())
            return None if absent else made
        case Kind.ARRAY:
            return [_plain_value(field.element, version, item) for item in value]
        case Kind.BYTES | Kind.RECORDS:
            return bytes(value)
        case Kind.STRING | Kind.UUID:
            return value


def _plain_number(field: Field, value: Any) -> int:
    match value:
        case None:  # "not asked" as kafka-python says it, "no time" as kio says it
            return OPERATIONS_NOT_ASKED if field.name.endswith("operations") else -1
        case set():  # kafka-python's bit fields: the numbers of the bits that are set
            unsigned = sum(1 << bit for bit in value)
            return unsigned - (1 << 32) if unsigned >> 31 else unsigned
        case datetime.timedelta():
            return value // _MILLISECOND
        case datetime.datetime():
            return (value - _EPOCH) // _MILLISECOND
        case _:
            return int(getattr(value, "value", value))


# --- kafka-python ----------------------------------------------------------------------------------------------------


def _ask_kafka_python(_api: Api, cls: type[Any], version: int, data: bytes) -> Reading:
    theirs = KAFKA_PYTHON_CLASSES[cls.__name__]
    # Not `theirs.decode`: its ApiVersionsResponse reads every answer with an error as version 0.
    message = ApiMessage.decode.__func__(theirs, data, version=version)
    message._header = None  # decoding without a header leaves it unset, and encoding asks for it
    return Reading(plain(cls, version, message), bytes(message.encode(version=version)))


def _kafka_python_knows(_api: Api, cls: type[Any], version: int) -> bool:
    theirs = KAFKA_PYTHON_CLASSES.get(cls.__name__)
    return theirs is not None and version <= theirs.max_version


# --- kio -------------------------------------------------------------------------------------------------------------


def _ask_kio(api: Api, cls: type[Any], version: int, data: bytes) -> Reading:
    schema = kio_schema(api, cls, version)
    message, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    out = io.BytesIO()
    entity_writer(schema)(out, message)
    return Reading(plain(cls, version, message), out.getvalue())


def _kio_knows(api: Api, cls: type[Any], version: int) -> bool:
    return kio_schema(api, cls, version) is not None


@cache
def kio_schema(api: Api, cls: type[Any], version: int) -> Any:
    load: Any = load_request_schema if cls is api.request else load_response_schema
    try:
        return load(api.key, version)
    except (UnknownAPIKey, UnknownEntity):
        return None


# --- kafka-python's older structs ------------------------------------------------------------------------------------


def _ask_handwritten(_api: Api, cls: type[Any], version: int, data: bytes) -> Reading:
    schema = _handwritten(cls, version).SCHEMA
    values = schema.decode(io.BytesIO(data))
    return Reading(_named(cls, version, values), schema.encode(values))


def _handwritten_knows(_api: Api, cls: type[Any], version: int) -> bool:
    return _handwritten(cls, version) is not None


def _named(cls: type[Any], version: int, values: Any) -> dict[str, Any]:
    """The tuples of values that such a struct reads, by the names of our fields in wire order."""
    present = [field for field in fields_of(cls) if field.present(version)]
    return {field.name: _named_value(field, version, value) for field, value in zip(present, values, strict=True)}


def _named_value(field: Field, version: int, value: Any) -> Any:
    if field.kind is Kind.ARRAY and value is not None and field.element.kind is Kind.STRUCT:
        return [_named(field.element.struct, version, item) for item in value]
    return value


@cache
def _handwritten(cls: type[Any], version: int) -> Any:
    package = importlib.import_module("kafka.protocol.old")
    for info in pkgutil.iter_modules(package.__path__, "kafka.protocol.old."):
        found = getattr(importlib.import_module(info.name), f"{cls.__name__}_v{version}", None)
        if found is not None:
            return found
    return None


ORACLES = {
    "kafka-python": Oracle(_kafka_python_knows, _ask_kafka_python),
    "kio": Oracle(_kio_knows, _ask_kio),
    "handwritten": Oracle(lambda *message: not _kio_knows(*message) and _handwritten_knows(*message), _ask_handwritten),
}


def oracles_of(api: Api, cls: type[Any], version: int) -> dict[str, Oracle]:
    """Who can be asked about a message. The handwritten structs are asked only where kio has nothing to say."""
    return {name: oracle for name, oracle in ORACLES.items() if oracle.knows(api, cls, version)}
