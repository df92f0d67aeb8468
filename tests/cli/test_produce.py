import os
import pty
import re
import signal

import pytest

from .command import COMMAND_S_MAX, Tidelog, one_line
from .server import Server


def test_summary_goes_to_stderr(tidelog: Tidelog, stream: str) -> None:
    ended = tidelog.succeed("produce", stream, stdin=b"one\ntwo\n")
    assert ended.out == b""
    assert ended.err == f"produced 2 records, 6 bytes, to {stream}\n"


def test_summary_as_json(tidelog: Tidelog, stream: str) -> None:
    ended = tidelog.succeed("produce", stream, "--json", stdin=b"one\ntwo")
    assert ended.parsed == {"stream": stream, "records": 2, "bytes": 6}
    assert ended.err == ""


def test_no_lines_are_no_records(tidelog: Tidelog, stream: str) -> None:
    assert tidelog.succeed("produce", stream).err == f"produced 0 records, 0 bytes, to {stream}\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(tidelog: Tidelog, stream: str, codec: str) -> None:
    lines = b"the same again\n" * 100
    tidelog.succeed("produce", stream, "--codec", codec, stdin=lines)
    assert tidelog.succeed("consume", stream, "--exit").out == lines


def test_same_key_same_partition(tidelog: Tidelog, stream: str) -> None:
    tidelog.succeed("stream", "alter", stream, "--partitions", "3")
    lines = b"".join(b"k%d=>v%d\n" % (number % 7, number) for number in range(70))
    tidelog.succeed("produce", stream, "--key-separator", "=>", stdin=lines)
    records = tidelog.succeed("consume", stream, "--exit", "--json").parsed_lines
    assert len(records) == 70
    assert len({(record["key"], record["partition"]) for record in records}) == 7


def test_a_partition_that_is_not_there(tidelog: Tidelog, stream: str) -> None:
    assert f"stream {stream} has no partition 3" in tidelog.fail("produce", stream, "--partition", "3")


def test_a_line_without_the_separator_stops_it_after_the_lines_before(tidelog: Tidelog, stream: str) -> None:
    line = tidelog.fail("produce", stream, "--key-separator", ":", stdin=b"a:1\nb:2\nc\nd:4\n")
    assert line.startswith(f"line 3 was not written to {stream}: the key separator is not in it; ")
    assert line.endswith("all lines before it are acknowledged; last acknowledged: line 2, offset 1 of partition 0")
    assert tidelog.succeed("consume", stream, "--exit", "--keys").out == b"a\t1\nb\t2\n"


def test_a_record_the_server_refuses_stops_it(tidelog: Tidelog, stream: str) -> None:
    line = tidelog.fail("produce", stream, stdin=b"small\n" + b"x" * 2_000_000 + b"\n")
    assert line.startswith(f"line 2 was not written to {stream}: Broker: Message size too large; ")
    assert line.endswith("last acknowledged: line 1, offset 0 of partition 0")
    assert tidelog.succeed("consume", stream, "--exit").out == b"small\n"


@pytest.mark.slow
def test_ctrl_c_flushes_what_was_taken(tidelog: Tidelog, stream: str) -> None:
    with tidelog.start("produce", stream) as producing:
        assert producing.stdin is not None
        producing.stdin.write(b"one\ntwo\n")
        tidelog.succeed("consume", stream, "--max", "2", "--timeout", "30")  # it runs, and has taken both
        producing.send_signal(signal.SIGINT)
        producing.wait(COMMAND_S_MAX)  # while its stdin is open
        _, err = producing.communicate()
    assert producing.returncode == 130
    assert err.decode().splitlines() == [
        f"produced 2 records, 6 bytes, to {stream}",
        "tidelog: interrupted after line 2; all lines up to it are acknowledged",
    ]


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(tidelog: Tidelog, stream: str) -> None:
    terminal, theirs = pty.openpty()
    try:
        with tidelog.start("produce", stream, stderr=theirs) as producing:
            assert producing.stdin is not None
            producing.stdin.write(b"one\n")
            shown = b""
            while b"1 records, 3 bytes" not in shown:  # written again and again, while stdin is open
                shown += os.read(terminal, 1000)
            producing.communicate(timeout=COMMAND_S_MAX)
        assert producing.returncode == 0
        while b"produced 1 records" not in shown:
            shown += os.read(terminal, 1000)
    finally:
        os.close(terminal)
        os.close(theirs)


@pytest.mark.slow
def test_a_server_that_dies_midway(mortal_server: Server) -> None:
    tidelog = Tidelog(mortal_server.bootstrap)
    tidelog.succeed("stream", "create", "short", "--partitions", "1")
    with tidelog.start("produce", "short", "--timeout", "3") as producing:
        assert producing.stdin is not None
        producing.stdin.write(b"one\ntwo\n")
        tidelog.succeed("consume", "short", "--max", "2", "--timeout", "30")
        mortal_server.kill()
        _, err = producing.communicate(b"three\n" * 1000, timeout=COMMAND_S_MAX)
    assert producing.returncode == 1
    # The two were readable; whether the producer heard so before the server died is not said.
    assert re.match(r"line [123] was not written to short: ", one_line(err.decode()))
