"""`tidelog-messages`, the pipelines' sink: the sink `tidelog`, for messages that travel packed (`kernel.messages`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.messages import MESSAGE_SCHEMA, PACK_SCHEMA, unpack
from tidelog.spark.sink import LogStreamWriter


class MessageSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-messages"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        if schema != from_arrow_schema(PACK_SCHEMA):
            raise BadOption("this sink is for a source with decode=message; for rows there is the format tidelog")
        return MessageStreamWriter(self.options, overwrite)


class MessageStreamWriter(LogStreamWriter):
    def __init__(self, given: Mapping[str, str], overwrite: bool) -> None:
        super().__init__(given, from_arrow_schema(MESSAGE_SCHEMA), overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        return super().write(unpack(iterator))
