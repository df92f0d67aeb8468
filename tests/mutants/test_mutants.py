"""The mutants fit the code, and their runner tells caught, survived, hung and stale apart."""

import shutil
from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS, ROOT, Limits, Verdict, run_mutants, run_tests_of
from tests.mutants.mutant import BadMutant, Mutant, read_mutants

RULE = "def may_vote(term: int, voted: int) -> bool:\n    return term > voted\n"
TESTS = """
import os
import tidelog.rule

def test_first(): assert os.sep
def test_one_vote_a_term(): assert not tidelog.rule.may_vote(1, 1)
"""


def mutant(name: str, find: str, replace: str) -> Mutant:
    return Mutant(name, "tidelog/rule.py", find, replace, "one vote a term")


@pytest.mark.parametrize("each", read_mutants(MUTANTS), ids=lambda each: each.name)
def test_each_mutant_fits_the_code(each: Mutant):
    assert each.why
    each.mutate((ROOT / each.file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("find", "replace", "complaint"),
    [
        ("voted + 1", "voted", "occurs 0 times"),
        ("term", "", "occurs 2 times"),
        ("term > voted", "term > voted", "the same"),
        ("term > voted", "term >", "no Python"),
    ],
)
def test_mutant_that_does_not_fit_is_refused(find: str, replace: str, complaint: str):
    with pytest.raises(BadMutant, match=complaint):
        mutant("bad", find, replace).mutate(RULE)


def make_project(root: Path) -> None:
    (root / "tidelog").mkdir()
    (root / "tidelog" / "__init__.py").touch()
    (root / "tidelog" / "rule.py").write_text(RULE)
    (root / "tests").mkdir()
    (root / "tests" / "test_rule.py").write_text(TESTS)
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("__init__.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, root / "tests")
    shutil.copytree(ROOT / "tests" / "mutants", root / "tests" / "mutants")


@pytest.mark.slow
def test_runner_tells_caught_survived_hung_and_stale_apart(tmp_path: Path):
    make_project(tmp_path)
    limits = Limits(test_seconds=2, run_seconds=60)
    mutants = [
        mutant("dropped", "term > voted", "True"),
        mutant("harmless", "term > voted", "voted < term"),
        mutant("endless", "    return", "    while True: pass\n    return"),
        mutant("stale", "term >= voted", "True"),
    ]
    assert run_tests_of(tmp_path, None, 0, limits).verdict is Verdict.SURVIVED
    results = {mutant.name: result for mutant, result in run_mutants(tmp_path, mutants, 2, limits)}

    assert results["dropped"].verdict is Verdict.CAUGHT
    assert results["dropped"].detail == "by tests/test_rule.py::test_one_vote_a_term"
    assert results["harmless"].verdict is Verdict.SURVIVED
    assert results["endless"].verdict is Verdict.CAUGHT
    assert results["endless"].detail == "by tests/test_rule.py::test_one_vote_a_term (timed out)"
    assert results["stale"].verdict is Verdict.ERROR


@pytest.mark.slow
def test_run_without_end_counts_as_caught_and_says_so(tmp_path: Path):
    make_project(tmp_path)
    endless = mutant("endless", "    return", "    while True: pass\n    return")
    result = run_tests_of(tmp_path, endless, 0, Limits(test_seconds=100, run_seconds=3))
    assert result.verdict is Verdict.CAUGHT
    assert result.detail == "hung: no end after 3 s"


@pytest.mark.slow
def test_run_against_other_code_than_the_mutated_is_an_error(tmp_path: Path):
    """Without a `tidelog` of its own the scratch copy imports the installed one, and nothing is proven."""
    make_project(tmp_path)
    shutil.move(tmp_path / "tidelog", tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "tidelog" / "nested")
    result = run_tests_of(tmp_path, None, 0, Limits())
    assert result.verdict is Verdict.ERROR
    assert "not the mutated code" in result.output
