"""Encoders, generated: a table, a version and an encoding become one straight-line Python function.

    encode(message, out, cuts) -> None

It appends the message to the bytearray `out`. Records are not copied: for each of them the pair (length of `out` at
that point, buffer) is added to `cuts`, and `interleave` makes the list of buffers from both.

Neighbours of fixed size are written by one `struct` call, together with the classic length or count that follows them
and the zero that stands for an empty tag section. A value that does not fit its field, or None where null cannot be
sent, is a programmer's error and raises what Python raises for it.
"""

import struct as struct_module
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from tidelog.wire.codec_fields import ZERO_UUID, Buffer, Field, Kind, fields_of
from tidelog.wire.codec_source import Source, encode_uvarint, packer

T = TypeVar("T")

Cuts = list[tuple[int, Buffer]]
Encoder = Callable[[T, bytearray, Cuts], None]

_BOUND: dict[str, Any] = {
    "pack": struct_module.pack,
    "uvarint": encode_uvarint,
    "ZERO_UUID": ZERO_UUID,
}
_ZERO = "x"  # `struct`'s code for a zero byte that takes no argument


def compile_encoder(cls: type[T], version: int, flexible: bool) -> Encoder[T]:
    return _EncoderSource(version, flexible).compile(cls)


def interleave(out: bytearray, cuts: Cuts) -> list[Buffer]:
    """The buffers whose concatenation is the message. Without records it is `out` alone."""
    if not cuts:
        return [out]
    view = memoryview(out)
    buffers: list[Buffer] = []
    start = 0
    for position, buffer in cuts:
        if position > start:
            buffers.append(view[start:position])
        buffers.append(buffer)
        start = position
    if start < len(out):
        buffers.append(view[start:])
    return buffers


class _EncoderSource:
    def __init__(self, version: int, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._source = Source(_BOUND)
        # The run of fixed-size values that one `struct` call will write: code and expression of each.
        self._run: list[tuple[str, str]] = []
        self._within_tag = False

    def compile(self, cls: type[T]) -> Encoder[T]:
        source = self._source
        with source.block("def encode(message, out, cuts):"):
            self._struct(cls, "message")
            self._write_run()
            source.line("return")
        return source.function("encode", f"encoder of {cls.__name__} version {self._version}")

    # --- values of fixed size, gathered into runs ---------------------------------------------------------------------

    def _put(self, code: str, expression: str = "") -> None:
        self._run.append((code, expression))

    def _write_run(self) -> None:
        """Emit the `struct` call for what was gathered. Must come before anything else is written."""
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        values = ", ".join(expression for code, expression in self._run if code != _ZERO)
        if codes == _ZERO:
            self._source.line("out.append(0)")
        else:
            self._source.line(f"out += {self._source.bind('pack', packer(codes).pack)}({values})")
        self._run = []

    def _put_length(self, length: str, classic_code: str) -> None:
        """Write the length or count that the variable `length` holds, -1 for null."""
        source = self._source
        if not self._flexible:
            self._put(classic_code, length)
            return
        self._write_run()
        with source.block(f"if {length} < 127:"):
            source.line(f"out.append({length} + 1)")
        with source.block("else:"):
            source.line(f"out += uvarint({length} + 1)")

    # --- structs ------------------------------------------------------------------------------------------------------

    def _struct(self, cls: type[Any], variable: str) -> None:
        tagged: list[tuple[Field, str]] = []
        for field in fields_of(cls):
            if field.present(self._version):
                value = f"{variable}.{field.name}"
                if field.tag is None:
                    self._field(field, value)
                else:
                    assert self._flexible, f"{value} has a tag in a version without tags"
                    tagged.append((field, value))
        if self._flexible:
            self._tags(sorted(tagged, key=lambda pair: pair[0].tag or 0))

    def _tags(self, tagged: list[tuple[Field, str]]) -> None:
        if not tagged:
            self._put(_ZERO)
            return
        source = self._source
        self._write_run()
        wanted = [self._differs(field, value) for field, value in tagged]
        with source.block(f"if {' or '.join(wanted)}:"):
            source.line(f"out.append({' + '.join(f'bool({condition})' for condition in wanted)})")
            outer = source.fresh("outer")
            for condition, (field, value) in zip(wanted, tagged, strict=True):
                with source.block(f"if {condition}:"):
                    source.line(f"{outer} = out")
                    source.line("out = bytearray()")
                    self._within_tag = True
                    self._field(field, value)
                    self._within_tag = False
                    self._write_run()
                    source.line(f"{outer} += uvarint({field.tag}) + uvarint(len(out)) + out")
                    source.line(f"out = {outer}")
        with source.block("else:"):
            source.line("out.append(0)")

    def _differs(self, field: Field, value: str) -> str:
        """The condition under which a tagged field is sent."""
        match field.default:
            case None:
                return f"{value} is not None"
            case UUID():
                return f"{value} != ZERO_UUID"
            case list():
                return value
            case _:
                return f"{value} != {field.default!r}"

    # --- fields -------------------------------------------------------------------------------------------------------

    def _field(self, field: Field, value: str) -> None:
        match field.kind:
            case Kind.FIXED:
                self._put(field.code, value)
            case Kind.UUID:
                self._put(field.code, f"{value}.bytes")
            case Kind.STRING | Kind.BYTES | Kind.RECORDS:
                self._sized(field, value)
            case Kind.ARRAY:
                self._array(field, value)
            case Kind.STRUCT:
                self._nested(field, value)

    def _sized(self, field: Field, value: str) -> None:
        source = self._source
        content, length = source.fresh("content"), source.fresh("length")
        if field.kind is Kind.STRING:
            encoded = f"{value}.encode()"
        else:
            encoded = value
        if field.nullable(self._version):
            with source.block(f"if {value} is None:"):
                source.line(f"{content} = b''")
                source.line(f"{length} = -1")
            with source.block("else:"):
                source.line(f"{content} = {encoded}")
                source.line(f"{length} = len({content})")
        else:
            source.line(f"{content} = {encoded}")
            source.line(f"{length} = len({content})")
        self._put_length(length, "h" if field.kind is Kind.STRING else "i")
        self._write_run()
        if field.kind is Kind.RECORDS:
            assert not self._within_tag, "cuts count from the start of the message, not of a tagged field"
            with source.block(f"if {length} > 0:"):
                source.line(f"cuts.append((len(out), {content}))")
        else:
            source.line(f"out += {content}")

    def _array(self, field: Field, value: str) -> None:
        source = self._source
        items, length = source.fresh("items"), source.fresh("length")
        source.line(f"{items} = {value}")
        if field.nullable(self._version):
            with source.block(f"if {items} is None:"):
                source.line(f"{items} = ()")
                source.line(f"{length} = -1")
            with source.block("else:"):
                source.line(f"{length} = len({items})")
        else:
            source.line(f"{length} = len({items})")
        self._put_length(length, "i")
        self._write_run()
        element = field.element
        if element.kind is Kind.FIXED:
            with source.block(f"if {length} > 0:"):
                source.line(f"out += pack(f'>{{{length}}}{element.code}', *{items})")
            return
        item = source.fresh("item")
        with source.block(f"for {item} in {items}:"):
            if element.kind is Kind.STRUCT:
                self._struct(element.struct, item)
            else:
                self._field(element, item)
            self._write_run()

    def _nested(self, field: Field, value: str) -> None:
        source = self._source
        inner = source.fresh("inner")
        source.line(f"{inner} = {value}")
        if not field.nullable(self._version):
            self._struct(field.struct, inner)
            return
        self._write_run()
        with source.block(f"if {inner} is None:"):
            source.line("out.append(255)  # -1 as int8")
        with source.block("else:"):
            self._put("b", "1")
            self._struct(field.struct, inner)
            self._write_run()
