"""Events of many items at a time: byte for byte what `EventBuilder` makes of each, several times faster.

Items come as an Arrow array of payloads, events leave as Arrow arrays. In between no byte of an item passes through
Python one by one: numpy finds where arguments begin and end, and Arrow copies.

    find      every CRLF of the whole buffer at once; an item of n arguments with 2n + 1 of them has none inside an
              argument, so every second one ends an argument. Lengths are then checked against what the item says
    encode    arguments are cut out so that each takes a multiple of three bytes, and all are base64 in one call
    assemble  an event is a row of slots in a pool of texts (constants of the command's name, encoded arguments,
              numbers): one gather copies the values of a step into place, in the order that the caller wants

An item that is rare is given to the builder, item by item: CRLF inside an argument, a key that is no UTF-8, many
arguments, options, a command without a key or with several, bytes that make no sense. `pksetexat` is written anew as
SET first, then goes the common way.

Cost: about a third of the builder's, in groups of thousands; small groups are built item by item. Memory is bounded
by ITEMS_MAX and BYTES_MAX a step, about 8 × the bytes of its items.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pikiwi.commands import MILLISECONDS_ABOVE, PKSETEXAT, Keys, ZeroExpiry
from tidelog.pikiwi.event import EventBuilder, Name, Pksetexat
from tidelog.pikiwi.event_items import DIGITS, PLAIN, Column, Items, Shape, shapes
from tidelog.pikiwi.event_pool import Pool, content_fits, side_by_side, stacked
from tidelog.pikiwi.filter import KeyPatterns
from tidelog.pikiwi.keys import TEXT, Encoding, is_internal, json_key
from tidelog.pikiwi.position import Position

ITEMS_MAX = 24_000  # a step; more gains nothing, since the pool leaves the processor's cache
BYTES_MAX = 64 * 1024 * 1024
GROUP_MIN = 256  # items of one shape; fewer are cheaper item by item

_REST_SLOTS = 8  # of an event: what `_rest_slots` gives
_WHOLE = -1

_SET = b"*3\r\n$3\r\nSET\r\n"
_SET_KEEP = b"*4\r\n$3\r\nSET\r\n"
_SET_TIME = b"*5\r\n$3\r\nSET\r\n"


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events of a step, in the order of their items."""

    item: pa.Array
    """Which item each is of, counted from the first of the call."""
    key: pa.Array
    value: pa.Array
    broadcast: pa.Array
    filtered: int
    """Items of this step without an event."""


@dataclass(frozen=True, slots=True)
class EventTexts:
    """The same while the values are not yet written down."""

    item: Column
    key: pa.Array
    broadcast: Column
    filtered: int
    _pool: Pool
    _slots: Column

    def values(self, events: Column | None = None) -> pa.Array:
        """Those of these events, by their place among the step's, in the order in which they are named; of all."""
        return self._pool.rows(self._slots if events is None else self._slots[events])


class EventKernel:
    def __init__(self, builder: EventBuilder) -> None:
        self.builder = builder
        settings = builder.settings
        self._base64_args = settings.args_encoding is Encoding.BASE64
        self._base64_raw = settings.raw_resp_encoding is Encoding.BASE64

    def build(
        self, payloads: pa.Array | list[bytes], filenums: Sequence[int] | Column, offsets: Sequence[int] | Column
    ) -> Iterator[EventColumns]:
        """The events of these items in their order, in steps of bounded size. `filenums` and `offsets` are their end
        positions."""
        for events in self.build_texts(payloads, filenums, offsets):
            item, broadcast = pa.array(events.item), pa.array(events.broadcast)
            yield EventColumns(item, events.key, events.values(), broadcast, events.filtered)

    def build_texts(
        self, payloads: pa.Array | list[bytes], filenums: Sequence[int] | Column, offsets: Sequence[int] | Column
    ) -> Iterator[EventTexts]:
        """The same, for a caller who wants the values in another order: they are copied once."""
        array = pa.array(payloads, pa.large_binary()) if isinstance(payloads, list) else payloads
        assert array.null_count == 0
        items = Items(array, np.asarray(filenums, dtype=np.uint64), np.asarray(offsets, dtype=np.uint64))
        assert len(items.starts) == len(items.filenums) == len(items.offsets)
        sizes = np.cumsum(items.ends - items.starts)
        # Steps of about one size: a small one at the end would be built item by item.
        items_max = -(-len(sizes) // max(1, -(-len(sizes) // ITEMS_MAX)))
        begin = 0
        while begin < len(sizes):
            before = int(sizes[begin - 1]) if begin else 0
            end = min(begin + items_max, max(begin + 1, int(np.searchsorted(sizes, before + BYTES_MAX, "right"))))
            yield self._step(items, begin, end)
            begin = end

    def _step(self, items: Items, begin: int, end: int) -> EventTexts:
        step = _Step()
        alone = self._vectorised(items, np.arange(begin, end), step, "")
        step.groups.append(self._by_item(items, alone, step.pool))
        return self._completed(items, step, end - begin)

    def _by_item(self, items: Items, rows: Column, pool: Pool) -> "_Group":
        item: list[int] = []
        key: list[bytes] = []
        value: list[bytes] = []
        broadcast: list[bool] = []
        for row in np.sort(rows).tolist():  # the first that makes no sense is the one that is told
            position = Position(int(items.filenums[row]), int(items.offsets[row]))
            event = self.builder.binlog_event(position, items.payload(row))
            if event is not None:
                item.append(row)
                key.append(event.key)
                value.append(event.value)
                broadcast.append(event.broadcast)
        return _Group(
            np.array(item, dtype=np.int64),
            side_by_side([pool.add_each(key), pool.empty], len(item)),
            side_by_side([pool.add_each(value)], len(item)),
            np.full(len(item), _WHOLE),
            np.array(broadcast, dtype=bool),
        )

    def _completed(self, items: Items, step: "_Step", item_count: int) -> EventTexts:
        """All events in the order of the items, with what follows their payloads."""
        groups, pool = step.groups, step.pool
        rows, key, ends, broadcast = (
            np.concatenate(columns)
            for columns in zip(*((group.rows, group.key, group.end, group.broadcast) for group in groups), strict=True)
        )
        order = np.argsort(rows, kind="stable")
        rows, ends = rows[order], ends[order]
        value = stacked([group.value for group in groups], pool.empty, _REST_SLOTS)[order]
        unfinished = np.flatnonzero(ends != _WHOLE)
        if len(unfinished):
            rest = self._rest_slots(pool, items, rows[unfinished], list(step.ends), ends[unfinished])
            value[unfinished, -_REST_SLOTS:] = rest
        return EventTexts(rows, pool.rows(key[order]), broadcast[order], item_count - len(rows), pool, value)

    def _vectorised(self, items: Items, rows: Column, step: "_Step", written: str) -> Column:
        """Build what has a common shape; returns the rows that have none."""
        rest: list[Column] = []
        for shape in shapes(items, rows, self.builder.settings.limits, rest):
            if len(shape.rows) < GROUP_MIN or shape.count == 1:
                rest.append(shape.rows)
            else:
                self._shape_built(items, shape, step, rest, written)
        return np.concatenate(rest) if rest else rows[:0]

    def _shape_built(self, items: Items, shape: Shape, step: "_Step", rest: list[Column], written: str) -> None:
        named = self._named(items, shape)
        if not written and shape.count == 4 and self.builder.settings.pksetexat is Pksetexat.SET:
            timed = named.which(lambda name: name.is_pksetexat)
            if timed.any():
                rest.append(self._rewritten(items, shape.chosen(timed), step))
                shape, named = shape.chosen(~timed), named.chosen(~timed)
        common = _is_common(items, shape, named, written)
        rest.append(shape.rows[~common])
        shape, named = shape.chosen(common), named.chosen(common)
        wanted = self._wanted(items, shape, named, written)
        self._assembled(items, shape.chosen(wanted), named.chosen(wanted), step, rest)

    def _named(self, items: Items, shape: Shape) -> "_Named":
        encoded = items.slices(shape.arg_starts[:, 0], shape.arg_ends[:, 0]).dictionary_encode()
        words = encoded.dictionary.to_pylist()
        names = [self.builder.name(word, "binlog") for word in words]
        return _Named(words, names, encoded.indices.to_numpy())

    def _wanted(self, items: Items, shape: Shape, named: "_Named", written: str) -> Column:
        """Rows that the filter lets pass and that are no key of the master's own."""
        chosen = self.builder.filter
        wanted = np.ones(len(shape.rows), dtype=bool)
        starts, ends = shape.arg_starts[:, 1], shape.arg_ends[:, 1]
        for row in np.flatnonzero((items.data[starts] == ord("_")) & (ends > starts)).tolist():
            wanted[row] = not is_internal(items.cut(starts[row], ends[row]))
        if not chosen.groups and not chosen.excludes:
            return wanted
        keys = items.slices(starts, ends)
        plans: dict[KeyPatterns, list[int]] = {}
        for number, name in enumerate(named.names):
            plan = chosen.plan(name.command.data_type, name.command.name, written)
            if plan is not None:
                plans.setdefault(plan, []).append(number)
        for plan, numbers in plans.items():
            held = np.isin(named.code, numbers)
            if held.any():
                wanted &= ~held | _matches(plan, keys)
        if chosen.excludes:
            wanted &= ~_matches(chosen.excludes, keys)
        return wanted

    def _rewritten(self, items: Items, shape: Shape, step: "_Step") -> Column:
        """Build `pksetexat key time value` as SET key value EXAT time; returns the rows that must go item by item."""
        starts, ends = shape.arg_starts[:, 2], shape.arg_ends[:, 2]
        digits, first = ends - starts, items.data[starts]
        is_number = items.consist_of(DIGITS, starts, ends) & (digits > 0)
        zero = is_number & (digits == 1) & (first == ord("0"))
        timed = is_number & (first != ord("0"))
        seconds = timed & (digits < len(str(MILLISECONDS_ABOVE)))
        milliseconds = timed & (digits > len(str(MILLISECONDS_ABOVE))) & (digits < 19)
        kept = zero & (self.builder.settings.zero_expiry is ZeroExpiry.KEEP)
        kinds = (
            (zero & ~kept, _SET, b""),
            (kept, _SET_KEEP, b"$7\r\nKEEPTTL\r\n"),
            (seconds, _SET_TIME, b"$4\r\nEXAT\r\n"),
            (milliseconds, _SET_TIME, b"$4\r\nPXAT\r\n"),
        )
        rest = [shape.rows[~(zero | seconds | milliseconds)]]
        for chosen, head, word in kinds:
            part = shape.chosen(chosen)
            if len(part.rows) < GROUP_MIN:
                rest.append(part.rows)
                continue
            before = len(step.groups)
            local = self._vectorised(_as_set(items, part, head, word), np.arange(len(part.rows)), step, PKSETEXAT)
            rest.append(part.rows[local])
            step.groups[before:] = [replace(group, rows=part.rows[group.rows]) for group in step.groups[before:]]
        return np.concatenate(rest)

    def _assembled(self, items: Items, shape: Shape, named: "_Named", step: "_Step", rest: list[Column]) -> None:
        """The events of rows of one shape; rows that turn out not to be plain are left to `rest`."""
        settings = self.builder.settings
        plain = np.ones(len(shape.rows), dtype=bool)
        if not self._base64_args or (settings.include_raw_resp and not self._base64_raw):
            for number in range(shape.count):
                plain &= items.consist_of(PLAIN, shape.arg_starts[:, number], shape.arg_ends[:, number])
        if settings.include_raw_resp and self._base64_raw:
            plain &= content_fits(items, shape.content_starts, shape.content_ends)
        key_plain = items.consist_of(PLAIN, shape.arg_starts[:, 1], shape.arg_ends[:, 1])
        key_texts: dict[int, bytes] = {}
        for row in np.flatnonzero(plain & ~key_plain).tolist():
            text, encoding = json_key(items.cut(shape.arg_starts[row, 1], shape.arg_ends[row, 1]))
            if encoding == TEXT:
                key_texts[row] = text[1:-1]
            else:
                plain[row] = False
        if not plain.all():
            rest.append(shape.rows[~plain])
            moved = np.cumsum(plain) - 1
            key_texts = {int(moved[row]): text for row, text in key_texts.items() if plain[row]}
            shape, named = shape.chosen(plain), named.chosen(plain)
        if len(shape.rows):
            step.groups.append(self._pooled(items, shape, named, key_texts, step))

    def _pooled(
        self, items: Items, shape: Shape, named: "_Named", key_texts: dict[int, bytes], step: "_Step"
    ) -> "_Group":
        """The events up to the end of `raw_resp`."""
        settings = self.builder.settings
        rows, count, pool = shape.rows, shape.count, step.pool
        keys = pool.add_array(items.slices(shape.arg_starts[:, 1], shape.arg_ends[:, 1]))
        key_slots = keys.copy()
        for row, text in key_texts.items():
            key_slots[row] = pool.add(text)
        words = [b2a_base64(word, newline=False) if self._base64_args else word for word in named.words]
        head = pool.add_each([name.head + b'"' for name in named.names])[named.code]
        args_head = pool.add_each([b'","args":["%s","' % word for word in words])[named.code]
        slots: list[Column | int] = [head, key_slots, args_head]
        comma = pool.add(b'","')
        if self._base64_args:
            arguments = pool.add_base64(items, shape.arg_starts[:, 1:], shape.arg_ends[:, 1:])
        else:
            flat = items.slices(shape.arg_starts[:, 1:].ravel(), shape.arg_ends[:, 1:].ravel())
            arguments = pool.add_array(flat).reshape(len(rows), count - 1)
        slots.append(arguments[:, 0])
        for number in range(1, count - 1):
            slots += (comma, arguments[:, number])
        after_args = b'"],"args_encoding":"%s"' % settings.args_encoding.value.encode()
        if settings.include_raw_resp:
            if self._base64_raw:
                raw = pool.add_base64_content(items, shape.content_starts, shape.content_ends)
            else:
                contents = items.slices(shape.content_starts, shape.content_ends)
                escaped = pc.ReplaceSubstringOptions("\r\n", "\\r\\n")
                raw = pool.add_array(pc.call_function("replace_substring", [contents], escaped))
            slots += (pool.add(after_args + b',"raw_resp":"'), raw)
        else:
            slots.append(pool.add(after_args))
        partition = pool.add_each([name.partition_prefix for name in named.names])[named.code]
        ends = np.array([step.ends.setdefault(name.end, len(step.ends)) for name in named.names])
        key, value = side_by_side([partition, keys], len(rows)), side_by_side(slots, len(rows))
        return _Group(rows, key, value, ends[named.code], np.zeros(len(rows), dtype=bool))

    def _rest_slots(self, pool: Pool, items: Items, rows: Column, end_texts: list[bytes], ends: Column) -> Column:
        """What follows `raw_resp`. Second, term and files stay the same for many items: their text is made once."""
        settings = self.builder.settings
        after_raw = b""
        if settings.include_raw_resp:
            after_raw = b'","raw_resp_encoding":"%s"' % settings.raw_resp_encoding.value.encode()
        headers = items.headers(rows)
        fields = [headers["exec_time_s"], headers["term_id"], headers["filenum"], items.filenums[rows]]
        fresh = np.zeros(len(rows), dtype=bool)
        fresh[0] = True
        for field in fields:
            fresh[1:] |= field[1:] != field[:-1]
        run = np.cumsum(fresh) - 1
        before: list[bytes] = []
        between: list[bytes] = []
        closing: list[bytes] = []
        for at in np.flatnonzero(fresh).tolist():
            parts = self.builder.rest(*(int(field[at]) for field in fields))
            before.append(after_raw + parts[0])
            between.append(parts[1])
            closing += [b'%s%s"%s%s' % (parts[2], TEXT, end, parts[3]) for end in end_texts]
        id_offset, offset = pool.add_numbers(headers["offset"], b":", b',"logic_id":')
        (logic_id,) = pool.add_numbers(headers["logic_id"], b"")
        (end_offset,) = pool.add_numbers(items.offsets[rows], b'"}')
        return side_by_side(
            [
                pool.add_each(before)[run],
                id_offset,
                logic_id,
                pool.add_each(between)[run],
                offset,
                logic_id,
                pool.add_each(closing)[run * len(end_texts) + ends],
                end_offset,
            ],
            len(rows),
        )


class _Step:
    """What has been found of a step: texts, and groups of events that are rows of them."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.groups: list[_Group] = []
        self.ends: dict[bytes, int] = {}
        """What follows the key's encoding (`Name.end`), and its number: an effect, so there are few."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Events of one shape up to the end of `raw_resp`, or whole ones; `key` and `value` are matrices of slots."""

    rows: Column
    key: Column
    value: Column
    end: Column
    """Which of the step's `ends` an event has, or _WHOLE."""
    broadcast: Column


@dataclass(frozen=True, slots=True)
class _Named:
    """The commands' names as they are in the items, what each decides, and which of them each row has."""

    words: list[bytes]
    names: list[Name]
    code: Column

    def which(self, holds: Callable[[Name], bool]) -> Column:
        return np.array([holds(name) for name in self.names], dtype=bool)[self.code]

    def chosen(self, mask: Column) -> "_Named":
        return _Named(self.words, self.names, self.code[mask])


def _is_common(items: Items, shape: Shape, named: _Named, written: str) -> Column:
    """Rows whose command has one key, as every command of its name has, and an effect that its name decides."""
    count = shape.count
    one_key = named.which(lambda name: _has_one_key(name, count))
    common = one_key & named.which(lambda name: bool(written) or count <= name.options_after)
    if count > 2:
        # XADD and ZADD: a letter behind the key is an option (or "inf"), a digit or a sign is an id or a score.
        first = items.data[shape.arg_starts[:, 2]]
        no_option = (first >= ord("+")) & (first <= ord("9"))
        common |= one_key & no_option & named.which(lambda name: name.options_after == 2)
    return common


def _has_one_key(name: Name, count: int) -> bool:
    keys = name.command.keys
    if name.is_pksetexat:
        return False  # one that could not be written anew: what becomes of it is the builder's matter
    return (keys is Keys.FIRST and count > 1) or (keys is Keys.ALL and count == 2)


def _matches(patterns: KeyPatterns, keys: pa.Array) -> Column:
    matched = np.zeros(len(keys), dtype=bool)
    if patterns.exact:
        wanted = pc.SetLookupOptions(value_set=pa.array(sorted(patterns.exact), keys.type))
        matched |= pc.call_function("is_in", [keys], wanted).to_numpy(zero_copy_only=False)
    for prefix in patterns.prefixes:
        begins = pc.call_function("starts_with", [keys], pc.MatchSubstringOptions(prefix))
        matched |= begins.to_numpy(zero_copy_only=False)
    if patterns.regexes:  # Arrow's expressions are not Python's
        left = np.flatnonzero(~matched)
        matched[left] = [patterns.match(key) for key in keys.take(pa.array(left)).to_pylist()]
    return matched


def _as_set(items: Items, shape: Shape, head: bytes, word: bytes) -> Items:
    """`pksetexat key time value` as items that say SET key value, an option's word and, if it takes one, the time."""
    pool = Pool()
    ends = shape.arg_ends + 2
    key, time, value = (
        pool.add_array(items.slices(shape.length_starts[:, number], ends[:, number])) for number in (1, 2, 3)
    )
    headers = items.headers(shape.rows)
    lengths = ends - shape.length_starts
    headers["length"] = len(head) + lengths[:, 1] + lengths[:, 3] + len(word)
    slots: list[Column | int] = [pool.add_fixed(headers), pool.add(head), key, value, pool.add(word)]
    if head is _SET_TIME:
        headers["length"] += lengths[:, 2].astype(np.uint32)
        slots.append(time)
    return Items(pool.rows(side_by_side(slots, len(shape.rows))), items.filenums[shape.rows], items.offsets[shape.rows])
