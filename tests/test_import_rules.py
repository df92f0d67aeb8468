"""The import rules of pyproject.toml hold (`make check` asks lint-imports) and bite (this file).

Each violation is planted in a scratch project that has every package of the map, and must be refused.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

PACKAGES = (
    "cli",
    "cluster",
    "console",
    "groups",
    "pikiwi",
    "raft",
    "regionwal",
    "server",
    "spark",
    "storage",
    "tier",
    "wire",
)

# (package that imports, what it imports)
ALLOWED = (
    ("storage", "tidelog.raft.log"),
    ("storage", "tidelog.wire"),
    ("storage", "os"),
    ("server", "tidelog.raft"),
    ("server", "tidelog.storage"),
    ("spark", "tidelog.pikiwi"),
    ("spark", "tidelog.wire"),
    ("cli", "tidelog.server"),
    ("cli", "tidelog.spark"),
    ("raft", "dataclasses"),
)
SERVER_SIDE = ("cluster", "groups", "raft", "server", "storage", "tier")
USERS = ("regionwal", "pikiwi", "spark")
REFUSED = (
    ("raft", "tidelog.wire"),
    ("raft", "tidelog.storage"),
    ("raft", "tidelog.server"),
    ("raft", "time"),
    ("raft", "asyncio"),
    ("wire", "tidelog.raft.log"),
    ("wire", "tidelog.storage"),
    ("wire", "socket"),
    ("storage", "tidelog.raft"),
    ("storage", "tidelog.raft.group"),
    ("storage", "tidelog.server"),
    ("cluster", "tidelog.server"),
    ("server", "tidelog.regionwal"),
    *((user, f"tidelog.{part}") for user in USERS for part in SERVER_SIDE),
    ("regionwal", "tidelog.wire"),
    ("pikiwi", "tidelog.wire"),
)


def make_project(folder: Path, imports: Sequence[tuple[str, str]], packages: Sequence[str] = PACKAGES) -> Path:
    """A project with the real rules and, for the n-th import, a module `importer_n` that does nothing else."""
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for package in ("", *packages):
        (folder / "tidelog" / package).mkdir(parents=True)
        (folder / "tidelog" / package / "__init__.py").touch()
    for module in ("log", "group"):
        (folder / "tidelog" / "raft" / f"{module}.py").touch()
    for n, (package, imported) in enumerate(imports):
        (folder / "tidelog" / package / f"importer_{n}.py").write_text(f"import {imported}\n")
    return folder


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--no-logo"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_allowed_imports_are_accepted(tmp_path: Path):
    result = lint_imports(make_project(tmp_path, ALLOWED))
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_refused_import_is_reported(tmp_path: Path):
    result = lint_imports(make_project(tmp_path, REFUSED))
    assert result.returncode == 1, result.stdout + result.stderr
    missed = [
        (package, imported)
        for n, (package, imported) in enumerate(REFUSED)
        if f"tidelog.{package}.importer_{n} -> {imported} " not in result.stdout
    ]
    assert not missed, result.stdout


def test_package_without_a_place_in_the_layers_is_refused(tmp_path: Path):
    result = lint_imports(make_project(tmp_path, (), (*PACKAGES, "newcomer")))
    assert result.returncode == 1
    assert "newcomer" in result.stdout
