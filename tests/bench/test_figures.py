"""The arithmetic of a comparison: ratios, their spread, targets, and turns."""

import pytest

from bench.figures import Figure, Results, Series, alternate, figure_lines, parse_target, results_from


def figure(tidelog: list[float], beside: list[float], target: str = "", peer: str = "Kafka") -> Figure:
    return Figure("row", "work", "MB/s", tidelog, peer, beside, target)


def test_ratio_is_the_median_of_rounds_compared_one_by_one():
    # A round in which the machine was slow is slow for both, and does not move the ratio.
    measured = figure([200, 20, 300], [100, 10, 100])
    assert measured.ratios == [2, 2, 3]
    assert measured.ratio == 2


def test_unequal_numbers_of_rounds_are_compared_by_medians_and_spread_as_far_as_they_could():
    measured = figure([1.0, 2.0, 3.0], [10.0, 20.0])
    assert measured.ratio == pytest.approx(2 / 15)
    assert (min(measured.ratios), max(measured.ratios)) == (1 / 20, 3 / 10)


@pytest.mark.parametrize(
    ("tidelog", "target", "met"),
    [(250, ">= 2.5", True), (249, ">= 2.5", False), (30, "<= 0.3", True), (31, "<= 0.3", False), (31, "", None)],
)
def test_a_target_is_met_from_its_bound_on(tidelog: float, target: str, met: bool | None):
    assert figure([tidelog], [100], target).met is met


def test_a_figure_without_anybody_beside_it_meets_and_misses_nothing():
    alone = figure([100], [], ">= 2", peer="")
    assert alone.ratio is None
    assert alone.met is None


def test_nothing_used_by_the_other_side_is_no_division_by_zero():
    ratio = figure([1.0], [0.0], "<= 0.5").ratio
    assert ratio is not None
    assert ratio > 1000


def test_a_target_that_is_no_target_is_refused():
    with pytest.raises(AssertionError, match="a target is written"):
        parse_target("about 3")


def test_turns_begin_with_another_each_time_and_the_first_rounds_do_not_count():
    order: list[str] = []

    def play(name: str) -> int:
        order.append(name)
        return len(order)

    measured = alternate({name: lambda n=name: play(n) for name in "abc"}, rounds=2, warm_up=1)
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert measured == {"a": [6, 8], "b": [4, 9], "c": [5, 7]}


def test_results_come_back_from_json_as_they_were():
    kept = Results(
        {"at": "today"},
        [figure([1.5, 2.5], [1.0, 2.0], ">= 2")],
        [Series("streams", "…", ["streams", "MB/s"], [[1, 2.5]])],
        ["a remark"],
    )
    assert results_from(kept.to_json()) == kept


def test_the_terminal_shows_verdict_ratio_and_spread():
    (line,) = figure_lines([figure([200, 300], [100, 100], ">= 3")])
    assert line.startswith("MISS")
    assert "2.50 (2.00–3.00)" in line
    assert "(target >= 3)" in line
