"""Decoders, generated: a table, a version and an encoding become one straight-line Python function.

    decode(data, position) -> (object, position behind it)

What the generated code keeps to:
- Nothing is read beyond the input, and no length or count is believed before it was held against the bytes that are
  left; a count of n needs n times the smallest element. So a message allocates in proportion to its bytes.
- The only exception is ProtocolError. `struct.error`, IndexError and UnicodeDecodeError can only mean that the input is
  too short or not UTF-8, and are turned into one.
- Neighbours of fixed size are read by one `struct` call, together with the length or count that follows them and the
  byte that begins a tag section (nearly always 0). Nested structs are part of the same function: no call, no recursion.
- Only `records` are views of the input; a message without them is copied to `bytes` once, because slicing those is
  several times cheaper than slicing a memoryview.
"""

import struct as struct_module
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from tidelog.wire.codec_fields import ZERO_UUID, Buffer, Field, Kind, fields_of
from tidelog.wire.codec_source import Source, bad_length, decode_uvarint, packer, skip_tags
from tidelog.wire.errors import ProtocolError

T = TypeVar("T")

Decoder = Callable[[Buffer, int], tuple[T, int]]

_BOUND: dict[str, Any] = {
    "new": object.__new__,
    "unpack_from": struct_module.unpack_from,
    "uvarint": decode_uvarint,
    "skip_tags": skip_tags,
    "bad_length": bad_length,
    "ProtocolError": ProtocolError,
    "Unreadable": (struct_module.error, IndexError, UnicodeDecodeError),
    "UUID": UUID,
    "ZERO_UUID": ZERO_UUID,
}


def compile_decoder(cls: type[T], version: int, flexible: bool) -> Decoder[T]:
    return _DecoderSource(version, flexible, holds_records(cls, version)).compile(cls)


def holds_records(cls: type[Any], version: int) -> bool:
    """Whether messages of this version carry record batches, at any depth."""
    for field in fields_of(cls):
        if field.present(version):
            inner = field.element if field.kind is Kind.ARRAY else field
            if inner.kind is Kind.RECORDS or (inner.kind is Kind.STRUCT and holds_records(inner.struct, version)):
                return True
    return False


def smallest_size(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that a field can take."""
    if not field.present(version) or field.tag is not None:
        return 0
    match field.kind:
        case Kind.FIXED | Kind.UUID:
            return field.size
        case Kind.STRING:
            return 1 if flexible else 2
        case Kind.BYTES | Kind.RECORDS | Kind.ARRAY:
            return 1 if flexible else 4
        case Kind.STRUCT:
            if field.nullable(version):
                return 1
            return sum(smallest_size(inner, version, flexible) for inner in fields_of(field.struct)) + flexible


class _DecoderSource:
    def __init__(self, version: int, flexible: bool, views: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._views = views  # the input stays a memoryview
        self._source = Source(_BOUND)
        # The run of fixed-size values that one `struct` call will read: code and target of each, and what follows it.
        self._run: list[tuple[str, str]] = []
        self._after_run: list[str] = []

    def compile(self, cls: type[T]) -> Decoder[T]:
        source = self._source
        with source.block("def decode(data, p):"):
            source.line("data = memoryview(data)" if self._views else "data = bytes(data)")
            source.line("end = len(data)")
            with source.block("try:"):
                self._struct(cls, "message")
                source.line("return message, p")
            with source.block("except Unreadable as error:"):
                source.line(f"raise ProtocolError(f'{cls.__name__} version {self._version}: {{error}}') from None")
        return source.function("decode", f"decoder of {cls.__name__} version {self._version}")

    # --- fields of fixed size, gathered into runs ---------------------------------------------------------------------

    def _take(self, code: str, target: str) -> None:
        self._run.append((code, target))

    def _read_run(self) -> None:
        """Emit the `struct` call for what was gathered. Must come before anything that needs the position."""
        source = self._source
        if self._run:
            codes = "".join(code for code, _ in self._run)
            targets = ", ".join(target for _, target in self._run)
            if codes == "B":
                source.line(f"{targets} = data[p]")
                source.line("p += 1")
            else:
                layout = packer(codes)
                source.line(f"{targets}, = {source.bind('unpack', layout.unpack_from)}(data, p)")
                source.line(f"p += {layout.size}")
        for line in self._after_run:
            source.line(line)
        self._run, self._after_run = [], []

    def _take_length(self, classic_code: str) -> None:
        """Read a length or count into `n`, -1 for null."""
        source = self._source
        self._take("B" if self._flexible else classic_code, "n")
        self._read_run()
        if self._flexible:
            with source.block("if n > 127:"):
                source.line("n, p = uvarint(data, p - 1)")
            source.line("n -= 1")

    # --- structs ------------------------------------------------------------------------------------------------------

    def _struct(self, cls: type[Any], variable: str) -> None:
        source = self._source
        source.line(f"{variable} = new({source.bind(cls.__name__, cls)})")
        tagged: list[tuple[Field, str]] = []
        for field in fields_of(cls):
            target = f"{variable}.{field.name}"
            if not field.present(self._version):
                source.line(f"{target} = {self._default(field)}")
            elif field.tag is not None:
                assert self._flexible, f"{target} has a tag in a version without tags"
                source.line(f"{target} = {self._default(field)}")
                tagged.append((field, target))
            else:
                self._field(field, target, f"{cls.__name__}.{field.name}")
        if self._flexible:
            self._tags(tagged, cls.__name__)
        self._read_run()

    def _default(self, field: Field) -> str:
        match field.default:
            case UUID():
                return "ZERO_UUID"
            case type():
                return f"{self._source.bind('default', field.default)}()"
            case _:
                return repr(field.default)

    def _tags(self, tagged: list[tuple[Field, str]], struct: str) -> None:
        source = self._source
        count = source.fresh("tags")
        self._take("B", count)
        self._read_run()
        with source.block(f"if {count}:"):
            if not tagged:
                source.line("p = skip_tags(data, p - 1, end)")
                return
            source.line(f"{count}, p = uvarint(data, p - 1)")
            with source.block(f"if {count} * 2 > end - p:"):
                source.line(f"raise bad_length('tagged fields', {count}, end - p)")
            tag, stop = source.fresh("tag"), source.fresh("stop")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, p = uvarint(data, p)")
                source.line("n, p = uvarint(data, p)")
                source.line(f"{stop} = p + n")
                with source.block(f"if {stop} > end:"):
                    source.line("raise bad_length('tagged field', n, end - p)")
                for index, (field, target) in enumerate(tagged):
                    with source.block(f"{'el' if index else ''}if {tag} == {field.tag}:"):
                        self._field(field, target, f"{struct}.{field.name}")
                        self._read_run()
                        with source.block(f"if p != {stop}:"):
                            source.line(f"raise ProtocolError('{struct}.{field.name}: does not fill its tag')")
                with source.block("else:"):
                    source.line(f"p = {stop}")

    # --- fields -------------------------------------------------------------------------------------------------------

    def _field(self, field: Field, target: str, where: str) -> None:
        source = self._source
        match field.kind:
            case Kind.FIXED:
                self._take(field.code, target)
            case Kind.UUID:
                raw = source.fresh("uuid")
                self._take(field.code, raw)
                self._after_run.append(f"{target} = UUID(bytes={raw})")
            case Kind.STRING | Kind.BYTES | Kind.RECORDS:
                self._sized(field, target, where)
            case Kind.ARRAY:
                self._array(field, target, where)
            case Kind.STRUCT:
                self._nested(field, target, where)

    def _sized(self, field: Field, target: str, where: str) -> None:
        """A string, bytes or records: a length, then so many bytes."""
        source = self._source
        self._take_length("h" if field.kind is Kind.STRING else "i")
        source.line("q = p + n")
        match field.kind, self._views:
            case Kind.STRING, True:
                value = "str(data[p:q], 'utf-8')"
            case Kind.STRING, False:
                value = "data[p:q].decode()"
            case Kind.BYTES, True:
                value = "bytes(data[p:q])"
            case _:
                value = "data[p:q]"
        if field.nullable(self._version):
            with source.block("if n == -1:"):
                source.line(f"{target} = None")
            with source.block("elif n < 0 or q > end:"):
                source.line(f"raise bad_length({where!r}, n, end - p)")
            with source.block("else:"):
                source.line(f"{target} = {value}")
                source.line("p = q")
        else:
            with source.block("if n < 0 or q > end:"):
                source.line(f"raise bad_length({where!r}, n, end - p)")
            source.line(f"{target} = {value}")
            source.line("p = q")

    def _array(self, field: Field, target: str, where: str) -> None:
        source = self._source
        element = field.element
        size = smallest_size(element, self._version, self._flexible)
        assert size > 0, f"{where}: elements without bytes would make the count unbounded"
        self._take_length("i")
        nullable = field.nullable(self._version)
        if nullable:
            with source.block("if n == -1:"):
                source.line(f"{target} = None")
        with source.block(f"{'elif' if nullable else 'if'} n < 0 or n * {size} > end - p:"):
            source.line(f"raise bad_length({where!r}, n, end - p)")
        with source.block("else:"):
            if element.kind is Kind.FIXED:
                source.line(f"{target} = list(unpack_from(f'>{{n}}{element.code}', data, p))")
                source.line(f"p += n * {size}")
                return
            items, item = source.fresh("items"), source.fresh("item")
            source.line(f"{items} = {target} = []")
            with source.block("for _ in range(n):"):
                if element.kind is Kind.STRUCT:
                    self._struct(element.struct, item)
                else:
                    self._field(element, item, where)
                    self._read_run()
                source.line(f"{items}.append({item})")

    def _nested(self, field: Field, target: str, where: str) -> None:
        source = self._source
        inner = source.fresh("inner")
        if not field.nullable(self._version):
            self._struct(field.struct, inner)
            source.line(f"{target} = {inner}")
            return
        self._take("b", "n")
        self._read_run()
        with source.block("if n == -1:"):
            source.line(f"{target} = None")
        with source.block("elif n != 1:"):
            source.line(f"raise ProtocolError(f'{where}: {{n}} is neither present nor null')")
        with source.block("else:"):
            self._struct(field.struct, inner)
            source.line(f"{target} = {inner}")
