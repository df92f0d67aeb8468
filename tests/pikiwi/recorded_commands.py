"""What real masters put on the stream, read from `fixtures/commands-*.txt`."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from tidelog.pikiwi.binlog import BinlogItem, encode_item
from tidelog.pikiwi.position import Position

VERSIONS = ("3.5.5", "4.0.1")
_LINE = re.compile(
    r"\s+resp_off=\((\d+),(\d+)\) term=(\d+) idx=\d+ sess=\d+ hdr=\((\d+),(\d+)\) .* logic=(\d+) exec=(\d+) (b'.*')$"
)


class Recorded(NamedTuple):
    end: Position
    item: BinlogItem

    @property
    def payload(self) -> bytes:
        return encode_item(self.item)


def recorded(version: str) -> list[Recorded]:
    text = (Path(__file__).parent / "fixtures" / f"commands-{version}.txt").read_text(encoding="utf-8")
    found: list[Recorded] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            end_file, end, term, start_file, start, logic_id, exec_time_s = map(int, match.groups()[:-1])
            item = BinlogItem(exec_time_s, term, logic_id, Position(start_file, start), ast.literal_eval(match[8]))
            found.append(Recorded(Position(end_file, end), item))
    assert len(found) == 75
    return found
