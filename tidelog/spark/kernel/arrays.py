"""Arrow arrays from numpy ones, without a copy and without pandas.

`pa.array` and `pa.scalar` import pandas when it is installed, to ask whether they were given something of its kind: a
third of a second for each of Spark's workers, of which a micro-batch may need several new ones.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TYPES = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64()}


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [None, pa.py_buffer(values)])


def optional_numbers(values: npt.NDArray[Any], nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Null where `nulls` says so."""
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def constant_text(text: str, count: int) -> pa.Array:
    """The same text in every row."""
    data = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data * count)])
