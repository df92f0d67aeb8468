"""Sizes and bounds of a node's storage."""

from dataclasses import dataclass

from tidelog.storage.segment import BLOCK_BYTES, SegmentShape

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageSettings:
    segment_bytes: int = 256 * MIB  # data of one segment; a batch must fit
    rows_bytes: int = 4 * MIB  # its rows: 131,072 entries, so batches below 2 KiB roll it early
    staging_bytes: int = 4 * MIB  # largest single write
    tail_cache_bytes: int = 32 * MIB
    queue_bytes_max: int = 128 * MIB  # handed to the writer and not yet durable; above it logs accept nothing
    readers_max: int = 256  # open segment files
    pool_files_max: int = 4  # files kept for reuse
    reserve_bytes: int = 256 * MIB  # with less free than this, clients' records are to be refused (see `space`)

    def __post_init__(self) -> None:
        if self.staging_bytes <= 0 or self.staging_bytes % BLOCK_BYTES:
            raise ValueError(f"staging_bytes is {self.staging_bytes}; it must be a multiple of {BLOCK_BYTES}")
        if self.reserve_bytes < 0:
            raise ValueError("reserve_bytes must not be negative")
        for name in ("tail_cache_bytes", "queue_bytes_max", "readers_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")

    @property
    def shape(self) -> SegmentShape:
        return SegmentShape(self.segment_bytes, self.rows_bytes)
