import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pikiwi.recorded_commands import VERSIONS, recorded
from tidelog.pikiwi.errors import RespError
from tidelog.pikiwi.resp import RespLimits, encode_command, parse_command

breaks = st.lists(st.sampled_from([b"\r\n", b"\r", b"\n", b"$1", b"*2", b"x"])).map(b"".join)
pieces = st.binary(max_size=40) | breaks
commands = st.lists(pieces, min_size=1, max_size=12)


@given(commands)
def test_a_command_comes_back_as_it_was_whatever_bytes_it_has(arguments: list[bytes]) -> None:
    assert parse_command(encode_command(arguments)) == arguments


@given(st.one_of(st.binary(max_size=80), st.lists(pieces).map(b"".join)))
def test_what_is_accepted_is_written_back_byte_for_byte(data: bytes) -> None:
    try:
        arguments = parse_command(data)
    except RespError:
        return
    assert encode_command(arguments) == data


@given(commands, st.data())
def test_a_damaged_command_is_refused_or_is_another_command(arguments: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(encode_command(arguments))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        parsed = parse_command(bytes(whole))
    except RespError:
        return
    assert encode_command(parsed) == bytes(whole)


@given(commands, st.data())
def test_a_command_that_is_cut_short_is_refused(arguments: list[bytes], data: st.DataObject) -> None:
    whole = encode_command(arguments)
    with pytest.raises(RespError):
        parse_command(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_command_of_a_real_master_is_parsed(version: str) -> None:
    for _, item in recorded(version):
        assert encode_command(parse_command(item.content)) == item.content


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "byte 0 should begin the number of arguments"),
        (b"PING\r\n", "byte 0 should begin the number of arguments"),
        (b"*0\r\n", "without arguments"),
        (b"*-1\r\n", "no number"),
        (b"*+1\r\n$1\r\na\r\n", "no number"),
        (b"*01\r\n$1\r\na\r\n", "no number"),
        (b"*1\r\n$-1\r\n", "no number"),
        (b"*1\r\n$01\r\na\r\n", "no number"),
        (b"*1\r\n$ 1\r\na\r\n", "no number"),
        (b"*1\n$1\na\n", "no number"),
        (b"*99999999999\r\n", "no number"),
        (b"*1\r\n:1\r\n", "byte 4 should begin the length of argument 0"),
        (b"*2\r\n$3\r\nDEL\r\n", "byte 13 should begin the length of argument 1"),
        (b"*1\r\n$3\r\nabcd\r\n", "no CRLF at byte 11"),
        (b"*1\r\n$5\r\nabc\r\n", "2 bytes are missing"),
        (b"*1\r\n$1\r\na\r\nmore", "4 bytes follow the command, which ends at byte 11"),
        (b"*1\r\n$1\r\na\r\n\r\n", "2 bytes follow"),
    ],
)
def test_what_is_no_command_is_refused_with_the_place(data: bytes, why: str) -> None:
    with pytest.raises(RespError, match=why):
        parse_command(data)


LONG = encode_command([b"SET", b"k", b"v" * 50])
CRLF = encode_command([b"SET", b"k", b"\r\n" * 25])


@pytest.mark.parametrize("command", [LONG, CRLF])
@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (RespLimits(arguments_max=2), "3 arguments; at most 2"),
        (RespLimits(argument_bytes_max=49), "argument 2 has 50 bytes; at most 49"),
        (RespLimits(command_bytes_max=70), "bytes; at most 70"),
    ],
)
def test_limits_hold_on_the_fast_and_on_the_exact_way(command: bytes, limits: RespLimits, why: str) -> None:
    with pytest.raises(RespError, match=why):
        parse_command(command, limits)


def test_a_command_at_its_limits_passes() -> None:
    limits = RespLimits(arguments_max=3, argument_bytes_max=50, command_bytes_max=len(LONG))
    assert parse_command(LONG, limits) == [b"SET", b"k", b"v" * 50]


def test_a_count_that_announces_more_than_there_is_reserves_nothing() -> None:
    with pytest.raises(RespError, match="should begin the length of argument 0"):
        parse_command(b"*1048576\r\n")


def test_long_arguments_and_many_of_them_are_parsed() -> None:
    arguments = [b"SADD", b"k", b"x" * 5000, *(b"%d" % number for number in range(5000))]
    assert parse_command(encode_command(arguments)) == arguments


def test_a_limit_below_one_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="below 1"):
        RespLimits(arguments_max=0)
