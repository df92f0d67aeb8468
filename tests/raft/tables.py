"""Tests as tables: a text file of cases, each a command, a line of four dashes, and what must come out.

    # why this case matters
    committed voters=(1 2 3) at=(1:5 2:7)
    ----
    5

A case ends at a blank line. Arguments are name=value, or name=(several values).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "tables"
_ARGUMENT = re.compile(r"(\w+)=(\([^)]*\)|\S+)")


@dataclass(frozen=True)
class Case:
    place: str
    command: str
    arguments: dict[str, list[str]]
    expected: str

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(int(value) for value in self.arguments.get(name, []))

    def pairs(self, name: str) -> dict[int, str]:
        """Values like 1:5, as {1: "5"}."""
        return {int(key): value for key, value in (item.split(":") for item in self.arguments.get(name, []))}


def cases(file_name: str) -> Iterator[Case]:
    lines = (FOLDER / file_name).read_text().splitlines()
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        place = f"{file_name}:{number}"
        assert lines[number].strip() == "----", f"{place}: a command is followed by four dashes"
        number += 1
        expected: list[str] = []
        while number < len(lines) and lines[number].strip():
            expected.append(lines[number].strip())
            number += 1
        found = {name: value.strip("()").split() for name, value in _ARGUMENT.findall(line)}
        yield Case(place, line.split()[0], found, "\n".join(expected))
