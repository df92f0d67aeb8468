"""Events: what the pipeline sends for a command of the binlog or of a snapshot. `docs/events.md` is the format.

An event's value is one JSON object. Up to `source` it is, byte for byte, what the seed's tool writes for the same
command, and the fields that Tidelog adds come after that: a consumer of the old format reads the new one.

Invariants: the value is JSON whatever the bytes of key and arguments are, and they can be had back from it exactly; an
event depends only on its item and the settings, never on a clock, so that what is built again is the same bytes; all
events of a key have one partition key; an item whose bytes make no sense is an error that names its position.

Cost: less than half of what `json.dumps` alone takes for such an object, decoding and filter included. What a command's
name alone decides is worked out once a name. `event_kernel` builds the same bytes for many items at a time.
"""

from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from json.encoder import encode_basestring
from typing import NamedTuple, Protocol

from tidelog.pikiwi.binlog import HEADER, HEADER_BYTES, ITEM_TYPE, decode_item
from tidelog.pikiwi.commands import (
    PADDING,
    PKSETEXAT,
    Command,
    Effect,
    Keys,
    ZeroExpiry,
    absolute_set,
    command_of,
    effect_of,
    keys_of,
    options_after,
    relative_setex,
)
from tidelog.pikiwi.errors import RespError
from tidelog.pikiwi.filter import EVERYTHING, Filter
from tidelog.pikiwi.keys import (
    NO_KEY,
    TEXT,
    Encoding,
    PartitionBy,
    base64,
    is_internal,
    json_key,
    json_texts,
    partition_prefix,
)
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import DEFAULT_LIMITS, RespLimits, encode_command, parse_command

_NAMES_MAX = 1024  # names come from the source: what is remembered of them is bounded


class Pksetexat(Enum):
    """What becomes of `pksetexat key time value`, which no Redis knows."""

    SET = "set"  # SET key value EXAT time, in op, args and raw_resp
    SETEX = "setex"  # as the seed's tool: raw_resp is a SETEX with the seconds left at exec_time; op and args stay


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Of one database of one source."""

    db: str
    source_id: str
    """`host:port` of the master, or any name."""
    replication_id: str = ""
    args_encoding: Encoding = Encoding.BASE64
    raw_resp_encoding: Encoding = Encoding.BASE64
    include_raw_resp: bool = True
    partition_by: PartitionBy = PartitionBy.DB_KEY
    pksetexat: Pksetexat = Pksetexat.SET
    zero_expiry: ZeroExpiry = ZeroExpiry.NONE
    limits: RespLimits = DEFAULT_LIMITS


class Event(NamedTuple):
    key: bytes
    """The partition key."""
    value: bytes
    broadcast: bool
    """Whether it has to go to every partition: it concerns keys of more than one."""


class SnapshotCommand(Protocol):
    """A command that a snapshot reader made of a key; `batch` counts the commands of that key from 0 on."""

    @property
    def data_type(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def args(self) -> Sequence[bytes]: ...
    @property
    def batch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Name:
    """What a command's name alone decides. `head` and `end` are the parts of the JSON around what an item decides."""

    command: Command
    head: bytes
    end: bytes  # with the effect that the command has without options
    ends: dict[Effect, bytes]
    partition_prefix: bytes
    options_after: int  # a command with more arguments may have options that change its effect
    one_key: bool  # the first argument; here and below since looking at an enum's members takes longer
    is_pksetexat: bool


_NO_OPTIONS = 2**62


class EventBuilder:
    def __init__(self, settings: EventSettings, chosen: Filter = EVERYTHING) -> None:
        self.settings = settings
        self.filter = chosen
        self._names: dict[tuple[bytes, str, str], Name] = {}
        self._binlog_names: dict[bytes, Name] = {}
        encodings = {settings.args_encoding, settings.raw_resp_encoding}
        self._base64_only = settings.include_raw_resp and encodings == {Encoding.BASE64}
        self._limits = settings.limits
        self._all = not chosen.groups and not chosen.excludes
        self._source_id = b',"source_id":' + _quoted(settings.source_id)
        self._source = b',"source":' + source_json(settings.source_id)
        self._snapshot_source = self._source_id + self._source
        self._db = _quoted(settings.db)[1:-1]
        self._stamp: tuple[int, int, int, int] | None = None
        self._rest = b""
        self._position = f"{settings.replication_id}/{settings.db}/"
        self._translated = self.name(b"SET", "binlog")

    def binlog_event(self, position: Position, payload: bytes) -> Event | None:
        """The event of one item; None when it is filtered, or stands for nothing. `position` is the item's end."""
        if len(payload) < HEADER_BYTES:
            decode_item(payload)  # says what is wrong with it
        kind, exec_time_s, term_id, logic_id, filenum, offset, length = HEADER.unpack_from(payload)
        raw = payload[HEADER_BYTES:]
        if kind != ITEM_TYPE or length != len(raw):
            decode_item(payload)
        try:
            args = parse_command(raw, self._limits)
        except RespError as error:
            raise RespError(f"{self.settings.db}, item that ends at {position}: {error}") from error
        name = self._binlog_names.get(args[0]) or self._binlog_name(args[0])
        written = ""
        if name.is_pksetexat:
            name, args, raw = self._translate(name, args, raw, exec_time_s)
            written = PKSETEXAT
        command = name.command
        if name.one_key and len(args) > 1:
            key, broadcast = args[1], False
            if is_internal(key) or not (self._all or self.filter.passes(key, command.data_type, command.name, written)):
                return None
        else:
            keys = keys_of(command, args)
            if command.name == PADDING or not self._any_passes(keys, command):
                return None
            key, broadcast = keys[0] if keys else None, len(keys) != 1
        end = name.end if len(args) <= name.options_after else name.ends[effect_of(command, args)]
        stamp = (exec_time_s, term_id, filenum, position[0])
        if stamp != self._stamp:
            self._stamp, self._rest = stamp, self._rest_format(stamp)
        key_text, key_encoding = json_key(key) if key is not None else NO_KEY
        numbers = self._rest % (offset, logic_id, offset, logic_id, key_encoding, end, position[1])
        value = b"".join((name.head, key_text, *self._payload(args, raw), numbers))
        return Event(name.partition_prefix + key if key is not None else name.partition_prefix[:-1], value, broadcast)

    def rest(self, exec_time_s: int, term_id: int, filenum: int, end_filenum: int) -> tuple[bytes, bytes, bytes, bytes]:
        """What follows the payload and stays the same for many items: up to the event id's offset and logic id; from
        there to the binlog's; from there to the key's encoding; and from the effect to the position's offset."""
        return (
            b',"ts_ms":%d,"event_id":"%d:%d:' % (exec_time_s * 1000, term_id, filenum),
            b'"%s,"binlog":{"filenum":%d,"offset":' % (self._source_id, filenum),
            b',"server_id":0,"term_id":%d}%s,"key_encoding":"' % (term_id, self._source),
            b"%d/" % end_filenum,
        )

    def _rest_format(self, stamp: tuple[int, int, int, int]) -> bytes:
        parts = [part.replace(b"%", b"%%") for part in self.rest(*stamp)]
        return b'%s%%d:%%d%s%%d,"logic_id":%%d%s%%s"%%s%s%%d"}' % (*parts,)

    def snapshot_event(self, command: SnapshotCommand, position: Position, ts_ms: int) -> Event | None:
        """The event of one command of a snapshot; None when it is filtered. `position` is the snapshot's, and `ts_ms`
        one time for the whole of it, so that a part that is built again is the same."""
        key, args, data_type = command.key, command.args, command.data_type
        name = self.name(args[0], "snapshot", data_type)
        if is_internal(key) or not (self._all or self.filter.passes(key, data_type, name.command.name)):
            return None
        key_text, key_encoding = json_key(key)
        raw = encode_command(args) if self.settings.include_raw_resp else b""
        # The key is within quotes in there; the batch makes the id unique, as no other batch of the key has its number.
        rest = b',"ts_ms":%d,"event_id":"%s:%s:%s:%s:%d"%s,"key_encoding":"%s"%s%d/%d"}' % (
            ts_ms,
            b"snapshot" if key_encoding == TEXT else b"snapshot64",
            self._db,
            data_type.encode(),
            key_text[1:-1],
            command.batch,
            self._snapshot_source,
            key_encoding,
            name.end if len(args) <= name.options_after else name.ends[effect_of(name.command, args)],
            *position,
        )
        value = b"".join((name.head, key_text, *self._payload(args, raw), rest))
        return Event(name.partition_prefix + key, value, broadcast=False)

    def name(self, word: bytes, event_type: str, data_type: str = "") -> Name:
        """What that name decides; `data_type` is what a snapshot knows of the key, whatever the command."""
        at = (word, event_type, data_type)
        found = self._names.get(at)
        if found is None:
            if len(self._names) >= _NAMES_MAX:
                self._names.clear()
            found = self._names[at] = self._made_name(command_of(word), event_type, data_type)
        return found

    def _binlog_name(self, word: bytes) -> Name:
        if len(self._binlog_names) >= _NAMES_MAX:
            self._binlog_names.clear()
        found = self._binlog_names[word] = self.name(word, "binlog")
        return found

    def _made_name(self, command: Command, event_type: str, data_type: str) -> Name:
        data_type = data_type or command.data_type
        db = self.settings.db
        head = b'{"event_type":"%s","op":%s,"data_type":%s,"db":%s,"slot":0,"key":' % (
            event_type.encode(),
            _quoted(command.name),
            _quoted(data_type),
            _quoted(db),
        )
        position = _quoted(self._position)[:-1]  # left open: the numbers follow
        ends = {effect: b',"effect":"%s","position":%s' % (effect.value.encode(), position) for effect in Effect}
        after = options_after(command)
        prefix = partition_prefix(self.settings.partition_by, db, data_type)
        return Name(
            command,
            head,
            ends[command.effect],
            ends,
            prefix,
            _NO_OPTIONS if after is None else after,
            command.keys is Keys.FIRST,
            command.name == PKSETEXAT,
        )

    def _translate(self, name: Name, args: list[bytes], raw: bytes, now_s: int) -> tuple[Name, list[bytes], bytes]:
        if self.settings.pksetexat is Pksetexat.SETEX:
            relative = relative_setex(args, now_s)
            return name, args, raw if relative is None else encode_command(relative)
        absolute = absolute_set(args, self.settings.zero_expiry)
        if absolute is None:
            return name, args, raw
        return self._translated, absolute, encode_command(absolute) if self.settings.include_raw_resp else raw

    def _any_passes(self, keys: Sequence[bytes], command: Command) -> bool:
        wanted = [key for key in keys if not is_internal(key)]
        if keys and not wanted:
            return False
        return any(self.filter.passes(key, command.data_type, command.name) for key in wanted or (None,))

    def _payload(self, args: Sequence[bytes], raw: bytes) -> tuple[bytes, ...]:
        """`args` and `raw_resp` with their encodings, which are base64 for bytes that are no UTF-8 whatever is set."""
        if self._base64_only:
            encoded = b'","'.join([b2a_base64(arg, newline=False) for arg in args])
            return _ARGS, encoded, _ARGS_RAW_RESP, b2a_base64(raw, newline=False), _RAW_RESP_END
        texts = None if self.settings.args_encoding is Encoding.BASE64 else json_texts(args)
        if texts is None:
            parts = [_ARGS, b'","'.join([base64(arg) for arg in args]), b'"],"args_encoding":"base64"']
        else:
            parts = [b',"args":[', b",".join(texts), b'],"args_encoding":"none"']
        if self.settings.include_raw_resp:
            texts = None if self.settings.raw_resp_encoding is Encoding.BASE64 else json_texts((raw,))
            if texts is None:
                parts += (b',"raw_resp":"', base64(raw), _RAW_RESP_END)
            else:
                parts += (b',"raw_resp":', texts[0], b',"raw_resp_encoding":"none"')
        return tuple(parts)


_ARGS = b',"args":["'
_ARGS_RAW_RESP = b'"],"args_encoding":"base64","raw_resp":"'
_RAW_RESP_END = b'","raw_resp_encoding":"base64"'


def source_json(source_id: str) -> bytes:
    """`host:port` taken apart; a name of another form is the host."""
    host, colon, port = source_id.rpartition(":")
    if colon and port.isascii() and port.isdecimal() and (port == "0" or not port.startswith("0")):
        return b'{"host":%s,"port":%s}' % (_quoted(host), port.encode())
    return b'{"host":%s}' % _quoted(source_id)


def _quoted(text: str) -> bytes:
    return encode_basestring(text).encode("utf-8", "replace")
