"""What any input may do to a decoder, and a fuzzer that looks for one that does more.

    python -m tests.wire.fuzz_decoders [-max_total_time=600] [CORPUS_FOLDER]

Options are libFuzzer's. The first two bytes of an input choose the message and version, the rest is its body; the last
choices are whole request frames. `test_messages_fuzz` runs the same check on inputs of its own, without atheris.
"""

import importlib
import sys
from typing import Any

from tests.wire.samples import MESSAGES
from tidelog.wire.codec import decode, decoder, encode
from tidelog.wire.codec_source import decode_uvarint, skip_tags
from tidelog.wire.errors import ProtocolError
from tidelog.wire.frames import decode_request, encode_request, read_header
from tidelog.wire.messages import Api

CHOICE_BYTES = 2


def check_message(api: Api, cls: type, version: int, body: bytes) -> bool:
    """Decode anything: a ProtocolError, or a value that can be sent and means the same when it comes back.

    Says whether it was a value. Whatever else is raised is a finding.
    """
    flexible = api.flexible(version)
    try:
        message, end = decode(cls, version, flexible, body)
    except ProtocolError:
        return False
    assert 0 <= end <= len(body), "read beyond the input"
    again = b"".join(encode(message, version, flexible))
    assert decode(cls, version, flexible, again) == (message, len(again))
    return True


def check_frame(frame: bytes) -> bool:
    """As `check_message`, for a whole request with its header."""
    try:
        header, request = decode_request(frame)
    except ProtocolError:
        return False
    again = b"".join(encode_request(header, request))
    assert decode_request(memoryview(again)[4:]) == (header, request)
    return True


def check_any(data: bytes) -> None:
    choice = int.from_bytes(data[:CHOICE_BYTES], "big") % (len(MESSAGES) + 8)
    if choice < len(MESSAGES):
        check_message(*MESSAGES[choice], data[CHOICE_BYTES:])
    else:
        check_frame(data[CHOICE_BYTES:])


def main() -> int:
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("this fuzzer needs atheris, which is not installed: pip install atheris", file=sys.stderr)
        return 1
    # Decoders are generated on first use and belong to no module, so atheris would not find them by itself.
    for api, cls, version in MESSAGES:
        atheris.instrument_func(decoder(cls, version, api.flexible(version)))
    for function in (decode_request, read_header, decode_uvarint, skip_tags):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, check_any)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
