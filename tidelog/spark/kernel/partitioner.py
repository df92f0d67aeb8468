"""Which partition a row goes to when it does not say so: as Kafka's Java client does, so that all writers agree.

A key goes where murmur2 of its bytes says. Rows without a key may go anywhere: Java's client picks a partition at
random and stays with it for a while. A retry must pick the same ones, so here the choice is a function of the row's
place in its task: runs of `KEYLESS_RUN` rows, each to the next partition, beginning at the task's number.

Cost: a numpy pass for every four bytes of the longest key, over the keys that are as long.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEYLESS_RUN = 1000

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Kafka's murmur2 of each key; of a null key, that of an empty one."""
    _, bounds_buffer, data_buffer = keys.buffers()
    bounds = np.frombuffer(bounds_buffer, dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.empty(0, dtype=np.uint8)
    begins, sizes = bounds[:-1], np.diff(bounds)
    hashes = _SEED ^ sizes.astype(np.uint32)
    words = sizes // 4
    rows = np.flatnonzero(words)
    number = 0
    while rows.size:
        at = begins[rows] + 4 * number
        word = data[at].astype(np.uint32)
        for place in (1, 2, 3):
            word |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
        word *= _M
        word ^= word >> _R
        word *= _M
        hashes[rows] = hashes[rows] * _M ^ word
        number += 1
        rows = rows[words[rows] > number]
    rest = sizes % 4
    tails = begins + 4 * words
    for place in (2, 1, 0):
        rows = np.flatnonzero(rest > place)
        hashes[rows] ^= data[tails[rows] + place].astype(np.uint32) << np.uint32(8 * place)
    rows = np.flatnonzero(rest)
    hashes[rows] *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def choose_partitions(keys: pa.Array, partition_count: int, task: int, first_row: int) -> npt.NDArray[np.int64]:
    """The partition of each row; `first_row` counts the rows of the task that came before."""
    chosen = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partition_count
    if keys.null_count:
        keyless = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        chosen[keyless] = (task + (first_row + keyless) // KEYLESS_RUN) % partition_count
    return chosen
