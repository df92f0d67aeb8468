"""What a row of the source can be: a decoder for each value of the option `decode`.

A decoder turns a run of whole record batches into Arrow rows of (some of) its columns.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.decode import RAW_SCHEMA, RECORD_SCHEMA, Place, decode_raw, decode_records
from tidelog.spark.kernel.options import Decode, ReadOptions


@dataclass(frozen=True, slots=True)
class Decoder:
    schema: pa.Schema
    rows: Callable[[memoryview, Place, pa.Schema], Iterator[pa.RecordBatch]]


def _raw_rows(run: memoryview, place: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield decode_raw(run, place, schema)


def decoder_of(options: ReadOptions) -> Decoder:
    match options.decode:
        case Decode.RAW:
            return Decoder(RAW_SCHEMA, _raw_rows)
        case Decode.RECORD:
            return Decoder(RECORD_SCHEMA, decode_records)
        case Decode.EVENT | Decode.TYPED:
            # Not at the top: workers that read other topics need nothing of PikiwiDB.
            from tidelog.spark.kernel import event_rows  # noqa: PLC0415

            if options.decode is Decode.EVENT:
                return Decoder(event_rows.EVENT_SCHEMA, event_rows.decode_events)
            return Decoder(event_rows.TYPED_SCHEMA, event_rows.decode_typed)


def schema_of(options: ReadOptions) -> pa.Schema:
    """The columns of the source, as the options choose them."""
    schema = decoder_of(options).schema
    if "headers" in schema.names and not options.include_headers:
        schema = schema.remove(schema.get_field_index("headers"))
    if options.columns is None:
        return schema
    if unknown := [name for name in options.columns if name not in schema.names]:
        raise BadOption(f"columns: there is no {', '.join(unknown)}; there are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in options.columns])
