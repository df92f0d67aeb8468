"""InitProducerId (22): an identity for an idempotent producer, without which its batches carry no sequence."""

from tidelog.wire.codec import int16, int32, int64, string, table


@table
class InitProducerIdRequest:
    transactional_id: str | None = string(nullable_since=0, default=None)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)


@table
class InitProducerIdResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
