from tidelog.raft import Reason, Refusal
from tidelog.server.refusals import error_of
from tidelog.wire.errors import ErrorCode


def test_every_reason_has_an_error_that_clients_know() -> None:
    for reason in Reason:
        assert error_of(Refusal(reason)) is not ErrorCode.NONE
