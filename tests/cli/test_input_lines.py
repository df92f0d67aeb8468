import os
from pathlib import Path

import pytest

from tidelog.cli import input_lines
from tidelog.cli.input_lines import LineTooLong, read_lines


def lines_of(content: bytes, folder: Path) -> list[bytes]:
    path = folder / "input"
    path.write_bytes(content)
    with open(path, "rb") as file:
        return list(read_lines(file.fileno(), lambda: True))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\n\nb", [b"a", b"", b"", b"b"]),
        (b"a\r\nb\n", [b"a\r", b"b"]),
        (b"\x00\xff\n", [b"\x00\xff"]),
    ],
)
def test_lines_end_with_a_newline_or_the_input(content: bytes, lines: list[bytes], tmp_path: Path) -> None:
    assert lines_of(content, tmp_path) == lines


def test_lines_longer_than_a_read_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "READ_BYTES", 3)
    assert lines_of(b"0123456\n\n01\n012", tmp_path) == [b"0123456", b"", b"01", b"012"]


def test_a_line_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "READ_BYTES", 3)
    monkeypatch.setattr(input_lines, "LINE_BYTES_MAX", 5)
    assert lines_of(b"01234\n01234\n", tmp_path) == [b"01234", b"01234"]
    with pytest.raises(LineTooLong):
        lines_of(b"01234\n012345\n", tmp_path)


def test_reading_ends_when_idle_says_so() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"a\nb")
        assert list(read_lines(reader, lambda: False)) == [b"a", b"b"]
    finally:
        os.close(reader)
        os.close(writer)
