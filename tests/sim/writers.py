"""Idempotent producers: each has one batch on its way, and sends it again until it is acknowledged."""

from tidelog.groups.producers import Numbers
from tidelog.wire.records import Record, build_batch


class Writer:
    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.value: bytes | None = None  # of the batch on its way
        self.records = 0  # in it
        self._sequence = 0  # of its first record

    @property
    def numbers(self) -> Numbers:
        return Numbers.of(self.producer_id, 0, self._sequence, self.records)

    def begin(self, value: bytes, records: int) -> None:
        self.value = value
        self.records = records

    def batch(self) -> bytearray:
        assert self.value is not None
        records = [Record(self.value)] + [Record(b"more")] * (self.records - 1)
        return build_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=self._sequence)

    def succeeded(self) -> None:
        self.value = None
        self._sequence += self.records
