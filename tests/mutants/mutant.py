"""A mutant: an exact piece of text that occurs once in one file, what stands there instead, and the rule it breaks."""

import os
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# What a scratch copy of the project holds: all that the fast tests need, nothing that they do not.
TREE = ("tidelog", "tests", "bench", "docs", "examples", "pyproject.toml", "README.md", "Makefile")


class BadMutant(Exception):
    """The mutant does not fit the code (any more). It proves nothing until it is brought up to date."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str  # relative to the project's root
    find: str  # occurs exactly once in `file`
    replace: str
    why: str  # the promise or safety rule that is broken

    def mutate(self, source: str) -> str:
        count = source.count(self.find)
        if count != 1 or not self.find:
            raise BadMutant(f"stale: its `find` occurs {count} times in {self.file}, not once")
        mutated = source.replace(self.find, self.replace)
        if mutated == source:
            raise BadMutant("`replace` is the same as `find`")
        try:
            compile(mutated, self.file, "exec")
        except SyntaxError as error:
            raise BadMutant(f"{self.file} is no Python after it: {error}") from error
        return mutated

    def mutate_tree(self, root: Path) -> None:
        path = root / self.file
        if not path.is_file():
            raise BadMutant(f"stale: there is no {self.file}")
        path.write_text(self.mutate(path.read_text(encoding="utf-8")), encoding="utf-8")


def read_mutants(path: Path) -> list[Mutant]:
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    mutants = [Mutant(**entry) for entry in entries]
    names = [mutant.name for mutant in mutants]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BadMutant(f"{path.name} has more than one mutant named {', '.join(repeated)}")
    return mutants


def copy_tree(root: Path, scratch: Path, tree: Sequence[str] = TREE) -> None:
    for name in tree:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, scratch / name)


def environment(scratch: Path, first: str) -> dict[str, str]:
    """The scratch copy comes first on the path, before the editable install; witness.py verifies that it did."""
    folder = scratch / "tmp"
    folder.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": str(scratch),
        "TMPDIR": str(folder),
        "HYPOTHESIS_PROFILE": "mutants",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / ".hypothesis"),
        "TIDELOG_MUTANT_ROOT": str(scratch),
        "TIDELOG_MUTANT_FIRST": first,
    }
