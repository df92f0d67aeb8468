"""Why consensus refused something, in the words of Kafka's protocol."""

from tidelog.raft import Reason, Refusal
from tidelog.wire.errors import ErrorCode

_CODES = {
    Reason.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.TRANSFERRING: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.LEADERSHIP_LOST: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.NOT_READY: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Reason.TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    Reason.BUSY: ErrorCode.NOT_ENOUGH_REPLICAS,  # clients wait and retry
    Reason.STORAGE_FULL: ErrorCode.KAFKA_STORAGE_ERROR,
    Reason.CHANGE_PENDING: ErrorCode.NOT_ENOUGH_REPLICAS,
    Reason.NOT_LEARNED: ErrorCode.NOT_ENOUGH_REPLICAS,
    Reason.INVALID: ErrorCode.INVALID_REQUEST,
}


def error_of(refusal: Refusal) -> ErrorCode:
    return _CODES[refusal.reason]
