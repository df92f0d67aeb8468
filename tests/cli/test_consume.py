import base64
import os
import subprocess
import time

import pytest

from .command import COMMAND_S_MAX, Tidelog
from .server import Server


@pytest.fixture
def five(tidelog: Tidelog, stream: str) -> str:
    """A stream with the values 0 to 4 at these offsets."""
    tidelog.succeed("produce", stream, stdin=b"0\n1\n2\n3\n4\n")
    return stream


@pytest.mark.slow
def test_round_trip_of_ten_thousand_lines(tidelog: Tidelog, stream: str) -> None:
    values = [b"" if number % 10 == 0 else os.urandom(number % 90).replace(b"\n", b" ") for number in range(10_000)]
    lines = b"".join(value + b"\n" for value in values)
    tidelog.succeed("produce", stream, "--codec", "zstd", stdin=lines)
    assert tidelog.succeed("consume", stream, "--exit").out == lines


def test_json_carries_keys_headers_and_bytes_that_are_no_text(tidelog: Tidelog, stream: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    lines = "schlüssel\twert\n\tno key\nno value\t\n".encode() + b"\xff\xfe\t\x80\n"
    tidelog.succeed(
        "produce", stream, "--key-separator", "\t", "--header", "trace=1", "--header", "trace=ü=2", stdin=lines
    )
    records = tidelog.succeed("consume", stream, "--exit", "--json").parsed_lines
    headers = [{"name": "trace", "value": "1"}, {"name": "trace", "value": "ü=2"}]
    assert all(before_ms <= record.pop("timestamp") <= before_ms + 1000 * COMMAND_S_MAX for record in records)
    place = {"partition": 0, "headers": headers}
    assert records == [
        {**place, "offset": 0, "key": "schlüssel", "value": "wert"},
        {**place, "offset": 1, "key": "", "value": "no key"},
        {**place, "offset": 2, "key": "no value", "value": ""},
        {
            **place,
            "offset": 3,
            "key_base64": base64.b64encode(b"\xff\xfe").decode(),
            "value_base64": base64.b64encode(b"\x80").decode(),
        },
    ]
    assert tidelog.succeed("consume", stream, "--exit", "--keys").out == lines


def test_a_record_without_a_key_has_null_in_json(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("produce", stream, stdin=b"v\n")
    (record,) = tidelog.succeed("consume", stream, "--exit", "--json").parsed_lines
    assert (record["key"], record["value"], record["headers"]) == (None, "v", [])


@pytest.mark.parametrize(
    ("start", "values"),
    [
        ("earliest", b"01234"),
        ("latest", b""),
        ("3", b"34"),
        ("5", b""),
        ("time:2001-02-03", b"01234"),
        ("time:2999-12-31T23:59:59+02:00", b""),
    ],
)
def test_from(tidelog: Tidelog, five: str, start: str, values: bytes) -> None:
    assert b"".join(tidelog.succeed("consume", five, "--exit", "--from", start).lines) == values


def test_from_the_time_of_a_record(tidelog: Tidelog, five: str) -> None:
    newest_ms = tidelog.succeed("consume", five, "--from", "4", "--exit", "--json").parsed["timestamp"]
    tidelog.succeed("produce", five, stdin=b"5\n")
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(newest_ms // 1000)) + f".{newest_ms % 1000:03}Z"
    after = tidelog.succeed("consume", five, "--from", f"time:{moment}", "--exit", "--json").parsed_lines
    assert after[0]["timestamp"] == newest_ms
    assert after[-1]["value"] == "5"


def test_from_an_offset_that_is_not_there(tidelog: Tidelog, five: str) -> None:
    tidelog.succeed("stream", "trim", five, "--before", "2")
    for offset in ("1", "6"):
        line = tidelog.fail("consume", five, "--from", offset)
        assert line.startswith(f"offset {offset} is not in partition 0 of {five}: it holds 2 to 5")


def test_exit_on_an_empty_stream(tidelog: Tidelog, stream: str) -> None:
    assert tidelog.succeed("consume", stream, "--exit").out == b""
    assert tidelog.succeed("consume", stream, "--exit", "--group", f"{stream}-group").out == b""


def test_one_partition_or_all(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("stream", "alter", stream, "--partitions", "3")
    for partition in ("0", "1"):
        tidelog.succeed("produce", stream, "--partition", partition, stdin=f"in {partition}\n".encode())
    assert sorted(tidelog.succeed("consume", stream, "--exit").lines) == [b"in 0", b"in 1"]
    assert tidelog.succeed("consume", stream, "--exit", "--partition", "1").lines == [b"in 1"]
    assert f"stream {stream} has no partition 3: it has 0 to 2" in tidelog.fail("consume", stream, "--partition", "3")


def test_max(tidelog: Tidelog, five: str) -> None:
    assert tidelog.succeed("consume", five, "--max", "2").lines == [b"0", b"1"]


def test_timeout_ends_a_wait(tidelog: Tidelog, five: str) -> None:
    assert tidelog.succeed("consume", five, "--from", "latest", "--timeout", "0.5").out == b""


def test_timeout_before_max_is_a_failure(tidelog: Tidelog, five: str) -> None:
    line = tidelog.fail("consume", five, "--from", "latest", "--max", "6", "--timeout", "0.5")
    assert line == f"no record of {five} for 0.5 s, after 0 of 6"


@pytest.mark.slow
def test_group_goes_on_after_what_was_written_out(tidelog: Tidelog, five: str) -> None:
    group = ("--group", f"{five}-group")
    assert tidelog.succeed("consume", five, *group, "--max", "2").lines == [b"0", b"1"]
    assert tidelog.succeed("consume", five, *group, "--exit").lines == [b"2", b"3", b"4"]
    assert tidelog.succeed("consume", five, *group, "--exit").lines == []
    assert tidelog.succeed("consume", five, "--exit").lines == [b"0", b"1", b"2", b"3", b"4"]


def test_group_has_its_own_places(tidelog: Tidelog, five: str) -> None:
    for argument in (("--partition", "0"), ("--from", "3"), ("--from", "time:2001-02-03")):
        assert tidelog.fail("consume", five, "--group", "g", *argument).startswith("a group has its own partitions")


@pytest.mark.slow
def test_follows_what_is_written_later(tidelog: Tidelog, stream: str) -> None:
    with tidelog.start("consume", stream, stderr=subprocess.DEVNULL) as consuming:
        assert consuming.stdout is not None
        for value in (b"first\n", b"second\n"):
            tidelog.succeed("produce", stream, stdin=value)
            assert consuming.stdout.readline() == value


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("produce", stream, stdin=(b"x" * 99 + b"\n") * 10_000)  # more than a pipe holds
    with tidelog.start("consume", stream) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert consuming.stdout.read(100) == b"x" * 99 + b"\n"
        consuming.stdout.close()
        assert consuming.wait(COMMAND_S_MAX) == 0
        assert consuming.stderr.read() == b""


def test_a_reader_that_is_not_there_is_no_error(tidelog: Tidelog, five: str) -> None:
    for command in (("stream", "list"), ("stream", "describe", five), ("consume", five, "--exit")):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            with tidelog.start(*command, stdout=writer) as process:
                _, err = process.communicate(timeout=COMMAND_S_MAX)
        finally:
            os.close(writer)
        assert (process.returncode, err) == (0, b"")


@pytest.mark.slow
def test_a_server_that_dies_is_not_taken_for_the_end(mortal_server: Server) -> None:
    tidelog = Tidelog(mortal_server.bootstrap)
    tidelog.succeed("stream", "create", "short")
    tidelog.succeed("produce", "short", stdin=b"one\n")
    with tidelog.start("consume", "short", "--timeout", "3") as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline() == b"one\n"
        mortal_server.kill()
        out, err = consuming.communicate(timeout=COMMAND_S_MAX)
    assert (consuming.returncode, out) == (1, b"")
    assert err.startswith(b"tidelog: no cluster at ")
