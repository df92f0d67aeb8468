"""Tidelog's own requests, framed like Kafka's and spoken on the same port, but not listed in ApiVersions.

TidelogAdmin carries a method's name and JSON, so that a new method needs no new table. ReadSegment hands out closed
segments as files, for a node that takes up a stream whose beginning others have.
"""

from tidelog.wire.codec import bytes_, int8, int16, int32, int64, string, table

READ_SEGMENT_BYTES_MAX = 1 << 20  # of one answer


# --- TidelogAdmin (10000) --------------------------------------------------------------------------------------------


@table
class TidelogAdminRequest:
    method: str = string()
    content: str = string(default="{}")
    """JSON: an object of the method's arguments."""


@table
class TidelogAdminResponse:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    content: str = string(default="{}")


# --- ReadSegment (10001) ---------------------------------------------------------------------------------------------


@table
class ReadSegmentRequest:
    stream: int = int64()
    first_index: int = int64()
    """The segment, by the index of its first entry."""
    part: int = int8()
    """0: the batches; 1: the index."""
    position: int = int64()
    length: int = int32()
    """At most READ_SEGMENT_BYTES_MAX; fewer bytes come only at the part's end."""


@table
class ReadSegmentResponse:
    error_code: int = int16()
    data: bytes = bytes_()
