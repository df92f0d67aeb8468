"""Which answers of the log pass by themselves, and which are final."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.regionwal.errors import LogFailed
from tidelog.regionwal.log_errors import is_passing

PASSING = (
    KafkaError._TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
FINAL = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.INVALID_REQUEST)


def _failed(code: int) -> LogFailed:
    error = LogFailed("cannot ask")
    error.__cause__ = KafkaException(KafkaError(code))
    return error


@pytest.mark.parametrize("code", PASSING)
def test_what_a_new_topic_or_a_change_of_leaders_answers_is_asked_again(code: int) -> None:
    assert is_passing(_failed(code))


@pytest.mark.parametrize("code", FINAL)
def test_what_will_not_change_is_final(code: int) -> None:
    assert not is_passing(_failed(code))


def test_a_failure_of_our_own_is_final() -> None:
    assert not is_passing(LogFailed("a topic with two partitions"))
