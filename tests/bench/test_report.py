"""The docs' tables and charts come from results alone, and what people wrote around them stays."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.charts import ratio_chart, series_chart
from bench.figures import Figure, Results, Series
from bench.report import filled, report, sections_of
from bench.vdl import PUBLISHED
from tidelog.cli import CommandError

ABOUT = {"at": "today", "machine": "2 cores", "tidelog": "1", "kafka": "4.1.0", "client": "C", "load": "0.1"}
MET = Figure("produce-1k", "produce <1 KiB>", "MB/s", [300.0], "Kafka", [100.0], ">= 2.5")
MISSED = Figure("failover", "leader killed", "s", [2.0], "Kafka", [10.0], "<= 0.1")
ALONE = Figure("one-1", "one record", "ms", [0.7])
GROWN = Series("streams", "saturating", ["streams", "MB/s", "MB"], [[1, 100.5, 80], [10, 90.25, 81], [100, 9.5, 90]])
PAGE = "# Performance\n\nWritten.\n<!-- bench:side-by-side -->\nold\n<!-- end -->\nAlso written.\n"


def test_what_stands_between_the_marks_is_replaced_and_nothing_else():
    assert filled(PAGE, {"side-by-side": "new\n| a |"}) == PAGE.replace("old", "new\n| a |")


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(CommandError, match="bench:growth"):
        filled(PAGE, {"growth": "new"})


def test_table_has_a_line_a_figure_with_ratio_target_and_verdict():
    sections, pictures = sections_of(Results(ABOUT, [MET, MISSED, ALONE], remarks=["a remark"]))
    text = sections["side-by-side"]
    assert "| `produce-1k` | produce <1 KiB> | 300 MB/s | Kafka: 100 | 3.00 (3.00–3.00) | ≥ 2.5 | ok |" in text
    assert "| `failover` | leader killed | 2.00 s | Kafka: 10.0 | 0.20 (0.20–0.20) | ≤ 0.1 | MISS |" in text
    assert "| `one-1` | one record | 0.70 ms | – | – |  |  |" in text
    assert "- a remark" in text
    assert list(pictures) == ["side-by-side.svg"]


def test_results_find_their_section_by_what_they_are():
    vdl = Figure("read", "read 100 B", "messages/s", [2.0], PUBLISHED, [1.0])
    assert list(sections_of(Results(ABOUT, [vdl]))[0]) == ["vdl"]
    sections, pictures = sections_of(Results(ABOUT, series=[GROWN]))
    assert "| 10 | 90.2 | 81 |" in sections["growth"]
    assert list(pictures) == ["growth-streams.svg"]


def test_charts_are_well_formed_and_color_what_misses_its_target():
    chart = ratio_chart([MET, MISSED, ALONE], "ratios & more")
    bars = list(ElementTree.fromstring(chart).iter("{http://www.w3.org/2000/svg}rect"))[1:]
    assert len(bars) == 2, "whoever has nobody beside it has no bar"
    assert bars[0].get("fill") != bars[1].get("fill")
    ElementTree.fromstring(series_chart(GROWN))


def test_a_ratio_beyond_all_bounds_stays_inside_the_picture():
    chart = ratio_chart(
        [Figure("a", "b", "s", [1e9], "Kafka", [1.0]), Figure("a", "b", "s", [1.0], "Kafka", [1e9])], ""
    )
    for bar in ElementTree.fromstring(chart).iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(bar.get("x", 0)) + float(bar.get("width", 0)) <= 860


def test_report_fills_the_page_and_draws(tmp_path: Path):
    (tmp_path / "performance.md").write_text(PAGE)
    (tmp_path / "results.json").write_text(Results(ABOUT, [MET]).to_json())
    assert report([tmp_path / "results.json"], tmp_path) == 0
    assert "3.00" in (tmp_path / "performance.md").read_text()
    assert (tmp_path / "performance" / "side-by-side.svg").read_text().startswith("<svg")


def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "performance.md").write_text(PAGE)
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(CommandError, match="no results of"):
        report([tmp_path / "results.json"], tmp_path)


def test_the_page_in_the_repository_has_all_marks():
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    filled(page, {"side-by-side": "", "growth": "", "vdl": ""})
