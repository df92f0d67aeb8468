"""The example database survives kill -9: at random moments, and at every fault point of the WAL below it.

After each death it is started again on the same folder and must hold exactly the rows that it acknowledged; the one
statement that it was killed over may have come through or not.
"""

import contextlib
import json
import os
import random
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from tidelog import faults

from .world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "memtable_db.py"
POINTS = (  # the others are tried on the WAL alone, by test_crash
    "regionwal.write.delivered",
    "regionwal.mark.after",
    "regionwal.clean.after-delete",
)
TABLES = ("apples", "pears")
ANSWER_S_MAX = 60
STATEMENTS_MAX = 60  # in one life
LIVES = 3

Rows = dict[str, dict[str, str]]  # by table, by key


class Killed(Exception):
    """The database is gone."""


class Child:
    """The example as a user runs it."""

    def __init__(self, world: World, folder: Path, fault: str | None = None) -> None:
        environment = {**os.environ, **({} if fault is None else {faults.ENVIRONMENT: fault})}
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(EXAMPLE), str(folder)),
                *("--bootstrap", world.log.bootstrap, "--namespace", world.namespace),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def wait_ready(self) -> None:
        assert self._hear() == "ready"

    def say(self, *words: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(words) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Killed from None

    def ask(self, *words: str) -> str:
        self.say(*words)
        return self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(ANSWER_S_MAX), f"no answer in {ANSWER_S_MAX} s"
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            status, said = self._process.wait(ANSWER_S_MAX), self._process.stderr.read()
            assert status in (faults.CRASH_STATUS, -9), f"ended with {status}: {said}"
            raise Killed
        return line.rstrip("\n")

    def rows(self) -> Rows:
        return {table: dict(json.loads(self.ask("rows", table))) for table in TABLES}

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """At the end of its input it closes everything and says nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(ANSWER_S_MAX) == 0


def statements(chance: random.Random) -> Iterator[tuple[str, ...]]:
    for _ in range(STATEMENTS_MAX):
        table, key = chance.choice(TABLES), f"k{chance.randrange(20)}"
        match chance.randrange(12):
            case 0:
                yield "flush", table
            case 1:
                yield ("clean",)
            case 2 | 3:
                yield "delete", table, key
            case _:
                pairs = {f"k{chance.randrange(20)}": f"v{chance.randrange(10**6)}" for _ in range(chance.randint(1, 3))}
                yield "put", table, *(word for pair in pairs.items() for word in pair)


def after(rows: Rows, statement: tuple[str, ...]) -> Rows:
    match statement:
        case ("put", table, *pairs):
            return {**rows, table: {**rows[table], **dict(zip(pairs[::2], pairs[1::2], strict=True))}}
        case ("delete", table, key):
            return {**rows, table: {name: value for name, value in rows[table].items() if name != key}}
        case _:
            return rows


def live_until_killed(child: Child, rows: Rows, chance: random.Random, fate: Callable[[], bool]) -> list[Rows]:
    """What the database may hold after its death: with, and without, the statement it died over."""
    for statement in statements(chance):
        wanted = after(rows, statement)
        try:
            child.say(*statement)
            if fate():
                child.kill()
            answer = child._hear()
        except Killed:
            return [rows, wanted]
        assert answer.startswith("ok"), answer
        rows = wanted
    return [rows]


def begin(child: Child) -> Rows:
    child.wait_ready()
    for table in TABLES:
        assert child.ask("create", table) == "ok"
    return {table: {} for table in TABLES}


@pytest.mark.slow
def test_database_holds_what_it_acknowledged_over_many_deaths(tidelog_world: World, tmp_path: Path) -> None:
    chance = random.Random(6)
    with Child(tidelog_world, tmp_path / "db") as child:
        possible = live_until_killed(child, begin(child), chance, lambda: chance.random() < 0.05)
        child.kill()
    for _ in range(LIVES):
        with Child(tidelog_world, tmp_path / "db") as child:
            child.wait_ready()
            rows = child.rows()
            assert rows in possible
            possible = live_until_killed(child, rows, chance, lambda: chance.random() < 0.05)
            child.kill()
    with Child(tidelog_world, tmp_path / "db") as child:
        child.wait_ready()
        assert child.rows() in possible
        child.end()


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_database_holds_what_it_acknowledged_after_a_crash_within_the_wal(
    tidelog_world: World, tmp_path: Path, point: str
) -> None:
    chance = random.Random(point)
    with Child(tidelog_world, tmp_path / "db", f"{point}=crash,skip:{chance.randrange(4)}") as child:
        try:
            possible = live_until_killed(child, begin(child), chance, lambda: False)
        except Killed:  # as it opened the region, or created a table
            possible = [{table: {} for table in TABLES}]
    with Child(tidelog_world, tmp_path / "db") as child:
        begin(child)
        assert child.rows() in possible
        child.end()


def test_rows_are_found_in_memory_in_files_and_after_a_replay(tidelog_world: World, tmp_path: Path) -> None:
    with Child(tidelog_world, tmp_path / "db") as child:
        begin(child)
        assert child.ask("put", "apples", "red", "1", "green", "2") == "ok 1"
        assert child.ask("flush", "apples") == "ok 2 rows"
        assert child.ask("put", "apples", "green", "3") == "ok 2"
        assert child.ask("delete", "apples", "red") == "ok 3"
        assert child.ask("get", "apples", "green") == "3"
        assert child.ask("get", "apples", "red") == "None"
        assert child.ask("get", "plums", "red") == "there is no table 'plums': create it first"
        child.end()

    with Child(tidelog_world, tmp_path / "db") as child:
        child.wait_ready()
        assert child.rows() == {"apples": {"green": "3"}, "pears": {}}
        assert child.ask("flush", "apples") == "ok 2 rows"
        assert child.rows() == {"apples": {"green": "3"}, "pears": {}}
        child.end()
    assert sorted(path.name for path in (tmp_path / "db" / "1-apples").iterdir()) == ["1.parquet", "3.parquet"]
