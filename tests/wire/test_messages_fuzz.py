"""Hostile bytes into every decoder: a ProtocolError or a value, never anything else, and memory in proportion."""

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.fuzz_decoders import check_frame, check_message
from tests.wire.samples import MESSAGE_IDS, MESSAGES, messages
from tidelog.wire.codec import decode, decoder, encode
from tidelog.wire.codec_source import encode_uvarint
from tidelog.wire.errors import ProtocolError
from tidelog.wire.frames import RequestHeader, encode_request
from tidelog.wire.messages import Api

EXAMPLES = max(2, settings().max_examples // 50)  # each is damaged in many ways
DAMAGES = 12  # of each kind, for one example
HOSTILE_LENGTHS = [
    bytes.fromhex(text)
    for text in (
        "7fffffff",
        "80000000",
        "ffffffff",
        "fffffffe",
        "7fff",
        "8000",
        "ffffffff0f",
        "ffffffff07",
        "808080",
        "00",
    )
]


def damaged(body: bytes, chance: random.Random) -> Iterator[bytes]:
    """Versions of a valid message: bits flipped, lengths replaced, parts repeated or taken out."""
    for _ in range(DAMAGES):
        flipped = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            flipped[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)
    for _ in range(DAMAGES):
        position = chance.randrange(len(body))
        length = chance.choice(HOSTILE_LENGTHS)
        yield body[:position] + length + body[position + len(length) :]
    for _ in range(DAMAGES):
        start, end = sorted((chance.randrange(len(body) + 1), chance.randrange(len(body) + 1)))
        yield body[:start] + body[end:]
        yield body[:end] + body[start:]


@pytest.mark.parametrize(("api", "cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
def test_damaged_messages(api: Api, cls: type[Any], version: int, data: st.DataObject, seed: int) -> None:
    chance = random.Random(seed)
    body = b"".join(encode(data.draw(messages(cls, version)), version, api.flexible(version)))
    for hostile in damaged(body, chance) if body else ():
        check_message(api, cls, version, hostile)
    # Every byte of a message is needed, so every shorter one is refused.
    for length in sorted({chance.randrange(len(body)) for _ in range(DAMAGES)} | {len(body) - 1}) if body else ():
        with pytest.raises(ProtocolError):
            decode(cls, version, api.flexible(version), body[:length])


def test_random_bytes_into_every_decoder() -> None:
    chance = random.Random(20)
    values = 0
    for api, cls, version in MESSAGES:
        for _ in range(40):
            # Small bytes are plausible lengths, so they lead deeper than uniform ones.
            top = chance.choice([2, 4, 256])
            body = bytes(chance.randrange(top) for _ in range(chance.randrange(120)))
            values += check_message(api, cls, version, body)
    assert values > 1000, "random bytes that never are a value test only the first field"


@given(data=st.data(), seed=st.integers(0, 2**32))
def test_damaged_request_frames(data: st.DataObject, seed: int) -> None:
    api, cls, version = data.draw(
        st.sampled_from([message for message in MESSAGES if message[1] is message[0].request])
    )
    header = RequestHeader(api.key, version, seed & 0x7FFFFFFF, data.draw(st.none() | st.text(max_size=5)))
    frame = b"".join(encode_request(header, data.draw(messages(cls, version))))[4:]
    assert check_frame(frame)
    for hostile in damaged(frame, random.Random(seed)):
        check_frame(hostile)


@pytest.mark.parametrize("pattern", ["7fffffff", "ffffffff07", "ffffffff0f", "0000000001"])
def test_twenty_bytes_never_allocate_much(pattern: str) -> None:
    for api, cls, version in MESSAGES:
        read = decoder(cls, version, api.flexible(version))
        for start in range(12):
            body = (b"\x00" * start + bytes.fromhex(pattern) * 5)[:20]
            tracemalloc.start()
            try:
                read(body, 0)
            except ProtocolError:
                pass
            finally:
                _, peak_bytes = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            assert peak_bytes < 20_000, f"{cls.__name__} version {version} on {body.hex()}"


def test_memory_is_in_proportion_to_the_input() -> None:
    """The densest message that there is: names of no bytes, two bytes a topic. This bounds what a frame can cost."""
    count = 50_000
    body = encode_uvarint(count + 1) + b"\x01\x00" * count + b"\x00\x00\x00\x00"
    api, cls, version = next(
        message for message in MESSAGES if message[1].__name__ == "MetadataRequest" and message[2] == 9
    )
    read = decoder(cls, version, api.flexible(version))
    tracemalloc.start()
    try:
        request, _ = read(body, 0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(request.topics) == count
    assert peak_bytes < 60 * len(body)
