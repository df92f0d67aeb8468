"""What the log's client says went wrong, as one of this package's errors."""

from confluent_kafka import KafkaError, KafkaException

from tidelog.regionwal.errors import LogFailed, RegionWalError, Timeout

TIMEOUTS = (
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
)


class OutOfRange(LogFailed):
    """The log no longer has, or does not have yet, the offset a read begins at."""


def failure(error: KafkaError, what: str) -> RegionWalError:
    """What the log said, as one of ours."""
    kind = Timeout if error.code() in TIMEOUTS else LogFailed
    made = kind(f"cannot {what}: {error.str()} ({error.name()})")
    made.__cause__ = KafkaException(error)
    return made


def code_of(error: RegionWalError) -> int | None:
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None


def is_passing(error: RegionWalError) -> bool:
    """Whether the same question may soon get an answer."""
    cause = error.__cause__
    if not isinstance(cause, KafkaException):
        return False
    known: KafkaError = cause.args[0]
    return known.retriable() or known.code() in (
        *TIMEOUTS,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    )
