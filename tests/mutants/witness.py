"""A pytest plugin for one mutated run. It is loaded by name, from the scratch copy, before any test.

It refuses to run if `tidelog` is not the scratch copy's: a mutant "survives" all too easily when nobody runs it. It
notes which tests failed, and puts the tests of the mutated package first, since they are the likeliest to notice.
"""

import os
import resource
from pathlib import Path

import pytest

import tidelog

ROOT = Path(os.environ["TIDELOG_MUTANT_ROOT"]).resolve()
FIRST = os.environ["TIDELOG_MUTANT_FIRST"]  # a folder relative to the root, e.g. tests/raft; may not exist
FAILURES = ROOT / "failures"

MEMORY_BYTES_MAX = 4 << 30  # a mutant that loops may well collect something while it does


def pytest_configure() -> None:
    for path in (tidelog.__file__, __file__):
        if path is None or not Path(path).resolve().is_relative_to(ROOT):
            raise pytest.UsageError(f"not the mutated code: {path} is not below {ROOT}")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.is_relative_to(ROOT / FIRST))


def note(nodeid: str) -> None:
    with FAILURES.open("a", encoding="utf-8") as file:
        file.write(nodeid + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        timed_out = "Timeout" in str(getattr(report.longrepr, "reprcrash", ""))
        note(f"{report.nodeid} (timed out)" if timed_out else report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        note(f"{report.nodeid} (cannot be imported)")
