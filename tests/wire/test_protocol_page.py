from tidelog.server.handlers import HANDLERS
from tidelog.wire.messages import APIS, PRIVATE_APIS

from .protocol_page import PAGE, page_with, table

PRODUCE, FETCH = 0, 1  # have classes of their own in the server


def test_the_page_says_what_the_code_supports() -> None:
    page = PAGE.read_text()
    assert page_with(table(), page) == page, "run python -m tests.wire.protocol_page"


def test_every_request_that_is_spoken_is_handled() -> None:
    assert HANDLERS.keys() | {PRODUCE, FETCH} == APIS.keys() | PRIVATE_APIS.keys()
