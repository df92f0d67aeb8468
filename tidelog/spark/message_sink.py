"""`tidelog-messages`, the pipelines' sink: the sink `tidelog`, for rows that are orders (`tidelog.spark.orders`)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from tidelog.spark.errors import BadOption
from tidelog.spark.orders import ORDER_SCHEMA, Delivered, orders_in
from tidelog.spark.sink import LaneMessage, LogStreamWriter

MESSAGE = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
    ]
)
"""`kernel.messages.MESSAGE_SCHEMA` as Spark has it; its topics are a dictionary, which Spark does not know."""


class MessageSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-messages"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        if schema != from_arrow_schema(ORDER_SCHEMA):
            raise BadOption("this sink is for a source with decode=order; for rows there is the format tidelog")
        return MessageStreamWriter(self.options, overwrite)


class MessageStreamWriter(LogStreamWriter):
    def __init__(self, given: Mapping[str, str], overwrite: bool) -> None:
        super().__init__(given, MESSAGE, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        delivered = Delivered(orders_in(iterator))
        message = super().write(iter(delivered))
        assert message.report is not None, "a streaming query reports"
        return LaneMessage(replace(message.report, left_out=delivered.left_out))
