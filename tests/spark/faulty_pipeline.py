"""The sink of a pipeline with places where it dies: the file `fault` in the pipeline's state folder names the place.

It takes the name of the real one, since a pipeline says itself where it writes to. A module of its own, because Spark's
workers import it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from tidelog.spark.message_sink import MESSAGE, MessageSink
from tidelog.spark.orders import Delivered, orders_in

from .faulty import Died, FaultyWriter

ALWAYS = "always"


class FaultySink(MessageSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _Writer(self.options, MESSAGE, overwrite)


class _Writer(FaultyWriter):
    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        state = Path(dict(given)["commitlocation"]).parents[2]
        super().__init__(given, schema, overwrite, (state / "fault").read_text(), state)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        if self._at == ALWAYS:
            raise Died("died always")
        return super().write(iter(Delivered(orders_in(iterator))))
