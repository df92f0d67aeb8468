"""Two clients' own code for codecs, batches and message sets, behind one face."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import aiokafka.codec
import cramjam
import lz4.frame
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaSetBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

from tidelog.wire.compression import Codec
from tidelog.wire.records import Record

with warnings.catch_warnings():  # kafka-python uses what Python has deprecated, and warnings are errors here
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBatchBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonSetBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords


class _Snappy:
    """What kafka-python wants of python-snappy, which is cramjam underneath: the framing around it stays its own."""

    @staticmethod
    def compress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(data))

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.decompress_raw(data))


class _XxHash:
    """What kafka-python wants of xxhash. The lz4 library has it inside: a frame may end with that of its content."""

    class xxh32:  # noqa: N801
        def __init__(self, data: bytes) -> None:
            self._data = data

        def digest(self) -> bytes:
            return lz4.frame.compress(self._data, content_checksum=True)[: -4 - 1 : -1]


CLIENTS = ("aiokafka", "kafka-python")
_CODECS: dict[str, Any] = {"aiokafka": aiokafka.codec, "kafka-python": kafka.codec}
_CODECS["kafka-python"].snappy = _Snappy
_CODECS["kafka-python"].xxhash = _XxHash
_BATCH_BUILDERS: dict[str, Any] = {"aiokafka": AiokafkaBatchBuilder, "kafka-python": KafkaPythonBatchBuilder}
_SET_BUILDERS: dict[str, Any] = {"aiokafka": AiokafkaSetBuilder, "kafka-python": KafkaPythonSetBuilder}
_READERS: dict[str, Any] = {"aiokafka": AiokafkaRecords, "kafka-python": KafkaPythonRecords}
_ROOM = 1 << 24


def encode(client: str, codec: Codec, data: bytes) -> bytes:
    name: Callable[[bytes], bytes] = getattr(_CODECS[client], f"{codec.name.lower()}_encode")
    return name(data)


def decode(client: str, codec: Codec, payload: bytes) -> bytes:
    name: Callable[[bytes], bytes] = getattr(_CODECS[client], f"{codec.name.lower()}_decode")
    return name(payload)


def build(client: str, magic: int, codec: Codec, records: Sequence[Record], producer: tuple[int, int, int]) -> bytes:
    """A batch, or a message set, of `records`; `producer` is id, epoch and base sequence, for a batch."""
    if magic == 2:
        builder = _BATCH_BUILDERS[client](2, codec, 0, *producer, _ROOM)
    else:
        builder = _SET_BUILDERS[client](magic, codec, _ROOM)
    for offset, record in enumerate(records):
        headers: dict[str, Any] = {"headers": list(record.headers)} if magic == 2 else {}
        assert builder.append(offset, timestamp=record.timestamp, key=record.key, value=record.value, **headers)
    return bytes(builder.build())


def read(client: str, data: bytes) -> list[Record]:
    """Every record that the client sees in batches or message sets; all checksums must be right."""
    records: list[Record] = []
    reader = _READERS[client](data)
    while reader.has_next():
        batch = reader.next_batch()
        assert batch.validate_crc()
        for record in batch:
            timestamp = -1 if record.timestamp is None else record.timestamp
            records.append(Record(record.value, record.key, timestamp, tuple(record.headers), record.offset))
    return records


def places(records: Sequence[Record]) -> list[tuple[int, int]]:
    return [(record.offset, record.timestamp) for record in records]
