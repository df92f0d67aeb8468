"""How a message is declared: a class that is a table of typed fields with version ranges.

    @table
    class HeartbeatRequest:
        group_id: str = string()
        generation_id: int = int32()
        member_id: str = string()
        group_instance_id: str | None = string(since=3, nullable_since=3, default=None)

Rules of a table:
- Fields stand in the order in which they go over the wire.
- `since` and `until` are the first and the last version that carries a field, both inclusive. Outside of them the field
  is skipped when encoding and holds its default after decoding.
- From `nullable_since` on, None may be sent. A default of None is not enough: it is only what Python starts with.
- A field with a `tag` exists in flexible versions only and is left out while it has its default. A tagged struct is
  None when it is absent.
- Every field has a default, so a response is made with only what matters.

`table` turns such a class into a slotted, mutable one with keyword arguments, equality and a repr. The field functions
below claim to return the field's *value* type, which is what a type checker should see; what they return is a `Field`.
"""

import dataclasses
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, TypeVar, cast, dataclass_transform, overload
from uuid import UUID

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview

LAST_VERSION = 0x7FFF  # versions are int16
ZERO_UUID = UUID(int=0)


class Kind(Enum):
    """What a field is on the wire."""

    FIXED = auto()  # one `struct` code
    UUID = auto()
    STRING = auto()
    BYTES = auto()
    RECORDS = auto()
    ARRAY = auto()
    STRUCT = auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One row of a table. Kinds of fixed size have `code` and `size`, arrays and structs have `of`: what they hold."""

    kind: Kind
    code: str = ""
    size: int = 0
    of: "Field | type[Any] | None" = None
    since: int = 0
    until: int = LAST_VERSION
    nullable_since: int | None = None
    default: Any = None
    tag: int | None = None
    name: str = ""

    def present(self, version: int) -> bool:
        return self.since <= version <= self.until

    def nullable(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since

    @property
    def element(self) -> "Field":
        """What an array holds."""
        assert isinstance(self.of, Field)
        return self.of

    @property
    def struct(self) -> type[Any]:
        """The table of a struct field."""
        assert isinstance(self.of, type)
        return self.of

    @property
    def fresh_default(self) -> bool:
        """Whether each object needs a default of its own, because the default is mutable."""
        return isinstance(self.default, (list, type))


_FIELDS = "__wire_fields__"
_FRESH: Any = object()  # the argument that was not given, where the default has to be made anew


@dataclass_transform(kw_only_default=True)
def table(cls: type[T]) -> type[T]:
    """Make a class of field rows into a message: a slotted class that the codec knows how to read and write.

    It looks like a dataclass, but is made ten times as fast: there are some 130 tables, and every start of a node or a
    command waits for them.
    """
    fields: list[Field] = []
    for name in cls.__annotations__:
        row = cls.__dict__[name]
        assert isinstance(row, Field), f"{cls.__name__}.{name} is not declared with a field function"
        fields.append(dataclasses.replace(row, name=name))
    body = {name: value for name, value in cls.__dict__.items() if name not in cls.__annotations__}
    del body["__dict__"], body["__weakref__"]
    body |= {
        "__slots__": tuple(field.name for field in fields),
        "__init__": _initializer(fields),
        "__eq__": _equal,
        "__hash__": None,
        "__repr__": _describe,
        _FIELDS: tuple(fields),
    }
    return cast("type[T]", type(cls.__name__, (), body))


def _initializer(fields: list[Field]) -> Callable[..., None]:
    """`__init__` with a keyword argument a field."""
    bound: dict[str, Any] = {"FRESH": _FRESH}
    arguments: list[str] = []
    lines: list[str] = []
    for field in fields:
        name = field.name
        if field.fresh_default:
            bound[f"new_{name}"] = list if isinstance(field.default, list) else field.default
            arguments.append(f"{name}=FRESH")
            lines.append(f"    self.{name} = new_{name}() if {name} is FRESH else {name}\n")
        else:
            bound[f"default_{name}"] = field.default
            arguments.append(f"{name}=default_{name}")
            lines.append(f"    self.{name} = {name}\n")
    exec(f"def __init__(self, *, {', '.join(arguments)}):\n{''.join(lines)}", bound)
    return cast("Callable[..., None]", bound["__init__"])


def _equal(self: object, other: object) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return all(getattr(self, field.name) == getattr(other, field.name) for field in fields_of(type(self)))


def _describe(self: object) -> str:
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields_of(type(self)))
    return f"{type(self).__name__}({values})"


def fields_of(cls: type[Any]) -> tuple[Field, ...]:
    """The rows of a table, in wire order."""
    return cast("tuple[Field, ...]", getattr(cls, _FIELDS))


# --- the field functions ---------------------------------------------------------------------------------------------


def boolean(*, since: int = 0, until: int = LAST_VERSION, default: bool = False, tag: int | None = None) -> bool:
    return cast("bool", Field(Kind.FIXED, "?", 1, None, since, until, None, default, tag))


def _integer(code: str, size: int, since: int, until: int, default: int, tag: int | None) -> int:
    return cast("int", Field(Kind.FIXED, code, size, None, since, until, None, default, tag))


def int8(*, since: int = 0, until: int = LAST_VERSION, default: int = 0, tag: int | None = None) -> int:
    return _integer("b", 1, since, until, default, tag)


def int16(*, since: int = 0, until: int = LAST_VERSION, default: int = 0, tag: int | None = None) -> int:
    return _integer("h", 2, since, until, default, tag)


def uint16(*, since: int = 0, until: int = LAST_VERSION, default: int = 0, tag: int | None = None) -> int:
    return _integer("H", 2, since, until, default, tag)


def int32(*, since: int = 0, until: int = LAST_VERSION, default: int = 0, tag: int | None = None) -> int:
    return _integer("i", 4, since, until, default, tag)


def uint32(*, since: int = 0, until: int = LAST_VERSION, default: int = 0, tag: int | None = None) -> int:
    return _integer("I", 4, since, until, default, tag)


def int64(*, since: int = 0, until: int = LAST_VERSION, default: int = 0, tag: int | None = None) -> int:
    return _integer("q", 8, since, until, default, tag)


def float64(*, since: int = 0, until: int = LAST_VERSION, default: float = 0.0, tag: int | None = None) -> float:
    return cast("float", Field(Kind.FIXED, "d", 8, None, since, until, None, default, tag))


def uuid(*, since: int = 0, until: int = LAST_VERSION, default: UUID = ZERO_UUID, tag: int | None = None) -> UUID:
    return cast("UUID", Field(Kind.UUID, "16s", 16, None, since, until, None, default, tag))


def string(
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = None,
    default: str | None = "",
    tag: int | None = None,
) -> str:
    return cast("str", Field(Kind.STRING, "", 0, None, since, until, nullable_since, default, tag))


def bytes_(
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = None,
    default: bytes | None = b"",
    tag: int | None = None,
) -> bytes:
    return cast("bytes", Field(Kind.BYTES, "", 0, None, since, until, nullable_since, default, tag))


def records(
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = 0,
    default: bytes | None = None,
) -> Buffer | None:
    """Record batches: decoded to a view of the input, encoded as a buffer of its own, never copied."""
    return cast("Buffer | None", Field(Kind.RECORDS, "", 0, None, since, until, nullable_since, default, None))


_EMPTY: list[Any] = []


@overload
def array(
    of: type[T],
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = None,
    default: list[T] | None = _EMPTY,
    tag: int | None = None,
) -> list[T]: ...
@overload
def array(
    of: T,
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = None,
    default: list[T] | None = _EMPTY,
    tag: int | None = None,
) -> list[T]: ...
def array(
    of: object,
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = None,
    default: list[Any] | None = _EMPTY,
    tag: int | None = None,
) -> list[Any]:
    """A list of a table's objects, or of what a field function without arguments stands for: `array(int32())`."""
    element = Field(Kind.STRUCT, of=of) if isinstance(of, type) else of
    assert isinstance(element, Field)
    assert not default, "an array's default is empty or None"
    return cast("list[Any]", Field(Kind.ARRAY, "", 0, element, since, until, nullable_since, default, tag))


def struct(
    of: type[T],
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> T:
    """One nested object. It starts as None when it may be absent (nullable or tagged), else as the table's default."""
    default = of if nullable_since is None and tag is None else None
    return cast("T", Field(Kind.STRUCT, "", 0, of, since, until, nullable_since, default, tag))
