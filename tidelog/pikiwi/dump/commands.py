"""From keys to the commands that build them.

| type | commands |
| --- | --- |
| string | `SET key value`, with `PXAT ms` when it expires |
| list | `RPUSH key v …` |
| hash | `HMSET key f v …` |
| set | `SADD key m …` |
| zset | `ZADD key score m …` |
| stream | `XADD key id f v …` an entry, then `XSETID` when the entries do not tell all |

One command a part, so at most `batch_num` elements each; then `PEXPIREAT key ms` for collections that expire. Expiry is
absolute, in milliseconds: a relative one would begin anew whenever the command is run, and the dump says when a key
ends, not how long it lives. Scores are the shortest text that reads back as the same double; infinities are `inf` and
`-inf`.
"""

import math
from collections.abc import Iterator
from itertools import chain

from tidelog.pikiwi.dump.model import DumpKey, SnapshotCommand, StreamState
from tidelog.pikiwi.errors import DumpError


def commands_of(keys: Iterator[DumpKey]) -> Iterator[SnapshotCommand]:
    """The commands of keys whose parts follow one another from the first to the last."""
    batch = 0
    for part in keys:
        data_type, key, expire_ms, elements, number, last, stream, _ = part
        if data_type == "string":
            expiry = (b"PXAT", b"%d" % expire_ms) if expire_ms else ()
            yield SnapshotCommand("string", key, (b"SET", key, elements[0], *expiry), 0)
            continue
        if not number:
            batch = 0
        if data_type == "stream":
            for ms, sequence, fields in elements:
                yield SnapshotCommand("stream", key, (b"XADD", key, b"%d-%d" % (ms, sequence), *fields), batch)
                batch += 1
            if last and stream is not None and (rest := _stream_rest(part, stream)):
                yield SnapshotCommand("stream", key, rest, batch)
            continue
        yield SnapshotCommand(data_type, key, _collection(part), batch)
        batch += 1
        if last and expire_ms:
            yield SnapshotCommand(data_type, key, (b"PEXPIREAT", key, b"%d" % expire_ms), batch)


def score_text(score: float) -> bytes:
    """A score as ZADD takes it, exact."""
    text = repr(score)
    return text.removesuffix(".0").encode()


def _collection(part: DumpKey) -> tuple[bytes, ...]:
    key, elements = part.key, part.elements
    match part.data_type:
        case "list":
            return (b"RPUSH", key, *elements)
        case "set":
            return (b"SADD", key, *elements)
        case "hash":
            return (b"HMSET", key, *chain.from_iterable(elements))
        case "zset":
            return (b"ZADD", key, *chain.from_iterable((_score(key, score), member) for member, score in elements))
        case _:
            raise AssertionError(part.data_type)


def _score(key: bytes, score: float) -> bytes:
    if math.isnan(score):
        raise DumpError(f"zset {key!r} has a score that is no number; the dump or the master's data is damaged")
    return score_text(score)


def _stream_rest(part: DumpKey, state: StreamState) -> tuple[bytes, ...] | None:
    """XSETID when the last id, the count of entries ever added or the largest deleted id is not what XADD gives."""
    last_ms, last_sequence, _ = part.elements[-1]
    plain = state.last_id == (last_ms, last_sequence) and state.entries_added == state.length
    if plain and state.max_deleted_id == (0, 0):
        return None
    ids = (state.last_id, state.max_deleted_id)
    last_id, deleted_id = (b"%d-%d" % pair for pair in ids)
    added = b"%d" % state.entries_added
    return (b"XSETID", part.key, last_id, b"ENTRIESADDED", added, b"MAXDELETEDID", deleted_id)
