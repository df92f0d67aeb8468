"""`make mutants`: each mutant of mutants.toml must make the fast tests fail.

Prints one line a mutant, saying which test caught it, and at the end caught/total. Exit status 0 only if all are.
Mutants run side by side, each with its own scratch copy and one process of tests that stops at the first failure:
most end within seconds, so starting test workers for each would cost more than it saves.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutants.mutant import BadMutant, Mutant, copy_tree, environment, read_mutants

ROOT = Path(__file__).parent.parent.parent
MUTANTS = Path(__file__).with_name("mutants.toml")

# The first three look at the project and not at its behaviour, and would "catch" mutants by what is not in the copy.
# The others start processes and clients, which is slow; a rule must be held by the tests of its own package.
IGNORED = (
    "tests/mutants",
    "tests/test_import_rules.py",
    "tests/wire/test_protocol_page.py",
    "tests/e2e",
    "tests/cli",
    "tests/spark",
)

TEST_SECONDS_MAX = 60
RUN_SECONDS_MAX = 600
RUN_FACTOR_MAX = 8  # times the unmutated run, which has all cores for itself: slow is not hung
OUTPUT_LINES_MAX = 60

EXIT_PASSED, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 2  # pytest's; collection errors count as an interruption


class Verdict(Enum):
    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Result:
    verdict: Verdict
    detail: str
    seconds: float = 0.0
    output: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    test_seconds: float = TEST_SECONDS_MAX
    run_seconds: float = RUN_SECONDS_MAX


live: set[int] = set()  # process groups of tests that run now, to be ended when we are interrupted


def run_fast_tests(scratch: Path, workers: int, first: str, limits: Limits) -> tuple[int | None, str]:
    """Exit status of pytest (None: it did not end in time) and its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow and not long", "-n", str(workers)]
    command += ["-p", "tests.mutants.witness", "-p", "no:cacheprovider", "-o", f"timeout={limits.test_seconds}"]
    command += [f"--ignore={path}" for path in IGNORED]
    with subprocess.Popen(
        command,
        cwd=scratch,
        env=environment(scratch, first),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        live.add(process.pid)
        try:
            output, _ = process.communicate(timeout=limits.run_seconds)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            live.discard(process.pid)
            kill_group(process.pid)


def kill_group(leader: int) -> None:
    """Also when pytest has ended: its tests may have left processes behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def judge(status: int | None, failures: Sequence[str], output: str, limits: Limits) -> Result:
    if status is None:
        where = f", after {failures[0]} had failed" if failures else ""
        return Result(Verdict.CAUGHT, f"hung: no end after {limits.run_seconds:.0f} s{where}")
    if status == EXIT_PASSED:
        return Result(Verdict.SURVIVED, "all fast tests pass")
    if failures and status in (EXIT_FAILED, EXIT_INTERRUPTED):
        return Result(Verdict.CAUGHT, f"by {failures[0]}")
    if status < 0:
        return Result(Verdict.CAUGHT, f"crashed by {signal.Signals(-status).name}")
    return Result(Verdict.ERROR, f"pytest could not run (exit status {status})", output=output)


def run_tests_of(root: Path, mutant: Mutant | None, workers: int, limits: Limits) -> Result:
    """Copy the tree, mutate the copy (or not, for None) and run the fast tests there."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-mutant-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder).resolve()
        copy_tree(root, scratch)
        first = ""
        if mutant is not None:
            try:
                mutant.mutate_tree(scratch)
            except BadMutant as error:
                return Result(Verdict.ERROR, str(error))
            first = str(Path("tests", *Path(mutant.file).parent.parts[1:]))
        status, output = run_fast_tests(scratch, workers, first, limits)
        noted = scratch / "failures"
        failures = noted.read_text(encoding="utf-8").splitlines() if noted.exists() else []
    result = judge(status, failures, output, limits)
    return Result(result.verdict, result.detail, time.monotonic() - started, output)


def run_mutants(root: Path, mutants: Sequence[Mutant], jobs: int, limits: Limits) -> Iterator[tuple[Mutant, Result]]:
    """In the order in which they end."""
    with ThreadPoolExecutor(jobs) as executor:
        futures = {executor.submit(run_tests_of, root, mutant, 0, limits): mutant for mutant in mutants}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            for leader in tuple(live):
                kill_group(leader)


def tail(output: str) -> str:
    return "\n".join(output.splitlines()[-OUTPUT_LINES_MAX:])


def select(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    unknown = sorted(set(names) - {mutant.name for mutant in mutants})
    if unknown:
        raise SystemExit(f"no mutant is named {', '.join(unknown)}; --list lists them")
    return [mutant for mutant in mutants if not names or mutant.name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="break each safety rule: the tests must notice")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these mutants only")
    parser.add_argument("--jobs", type=int, default=2, help="mutants side by side (default 2)")
    parser.add_argument("--skip-unmutated", action="store_true", help="trust that the tests pass without a mutant")
    parser.add_argument("--verbose", action="store_true", help="show the end of pytest's output of each mutant")
    parser.add_argument("--list", action="store_true", help="list the mutants and what each breaks")
    options = parser.parse_args(arguments)

    mutants = select(read_mutants(MUTANTS), options.only)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:40} {mutant.file}: {mutant.why}")
        return 0

    limits = Limits()
    if not options.skip_unmutated:
        unmutated = run_tests_of(ROOT, None, options.jobs, limits)
        if unmutated.verdict is not Verdict.SURVIVED:
            print(tail(unmutated.output))
            print(f"the fast tests must pass without a mutant first: {unmutated.detail}")
            return 1
        print(f"unmutated: all fast tests pass ({unmutated.seconds:.0f} s)", flush=True)
        limits = Limits(run_seconds=max(RUN_SECONDS_MAX, RUN_FACTOR_MAX * unmutated.seconds))

    started = time.monotonic()
    caught = 0
    for mutant, result in run_mutants(ROOT, mutants, options.jobs, limits):
        caught += result.verdict is Verdict.CAUGHT
        broken = "" if result.verdict is Verdict.CAUGHT else f" [{mutant.file}: {mutant.why}]"
        print(f"{result.verdict.value:8}  {mutant.name}  {result.detail} ({result.seconds:.0f} s){broken}", flush=True)
        if options.verbose or result.verdict is Verdict.ERROR:
            print(tail(result.output), flush=True)
    print(f"{caught}/{len(mutants)} caught in {time.monotonic() - started:.0f} s")
    return 0 if mutants and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
