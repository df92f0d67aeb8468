"""`tidelog bench report`: tables and charts of docs/performance.md, made from what `--json` wrote.

Nobody types a figure into the docs. The page has pairs of marks, `<!-- bench:NAME -->` and `<!-- end -->`; what stands
between is replaced, all else is left as it is.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.charts import ratio_chart, series_chart
from bench.figures import Figure, Results, Series, quantity, ratio_text, results_from, verdict
from bench.vdl import PUBLISHED
from tidelog.cli import CommandError

PAGE = "performance.md"
PICTURES = "performance"
SIDE_BY_SIDE, GROWTH, VDL = "side-by-side", "growth", "vdl"


def report(files: Sequence[Path], docs: Path) -> int:
    page = docs / PAGE
    try:
        results = [results_from(file.read_text()) for file in files]
        text = page.read_text()
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"these are no results of `tidelog bench --json`: {error}") from None
    sections, pictures = {}, {}
    for one in results:
        made, drawn = sections_of(one)
        sections |= made
        pictures |= drawn
    (docs / PICTURES).mkdir(exist_ok=True)
    for name, picture in pictures.items():
        (docs / PICTURES / name).write_text(picture)
    page.write_text(filled(text, sections))
    print(f"{page}: {', '.join(sections)}; {len(pictures)} charts in {docs / PICTURES}")
    return 0


def sections_of(results: Results) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by mark, and pictures by file name."""
    if results.series:
        pictures = {f"growth-{series.name}.svg": series_chart(series) for series in results.series}
        parts = [_series_part(series) for series in results.series]
        return {GROWTH: "\n\n".join([_about(results), *parts])}, pictures
    if any(figure.peer == PUBLISHED for figure in results.figures):
        return {VDL: f"{_about(results)}\n\n{figure_table(results.figures)}"}, {}
    name = "side-by-side.svg"
    title = "Tidelog ÷ Apache Kafka: green meets its target (the dark mark), red does not"
    text = [_about(results), f"![ratios]({PICTURES}/{name})", figure_table(results.figures)]
    text += [f"- {remark}" for remark in results.remarks]
    return {SIDE_BY_SIDE: "\n\n".join(text)}, {name: ratio_chart(results.figures, title)}


def _about(results: Results) -> str:
    about = results.about
    return (
        f"Measured {about['at']} on {about['machine']}; Tidelog {about['tidelog']}, Apache Kafka {about['kafka']}, "
        f"client: {about['client']}. Load of the machine: {about['load']}."
    )


def figure_table(figures: Sequence[Figure]) -> str:
    """Medians over the rounds; in brackets the least and greatest ratio of a round."""
    lines = [
        "| row | what | Tidelog | beside it | Tidelog ÷ it | target | |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for figure in figures:
        beside = f"{figure.peer}: {quantity(figure.beside_value)}" if figure.peer else "–"
        target = figure.target.replace(">=", "≥").replace("<=", "≤")
        cells = [
            f"`{figure.row}`",
            figure.name,
            f"{quantity(figure.value)} {figure.unit}",
            beside,
            ratio_text(figure),
            target,
            verdict(figure),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _series_part(series: Series) -> str:
    head = "| " + " | ".join(series.columns) + " |"
    rule = "|" + " ---: |" * len(series.columns)
    rows = [
        "| " + " | ".join(f"{value:,.0f}" if value == int(value) else quantity(value) for value in point) + " |"
        for point in series.points
    ]
    picture = f"![{series.name}]({PICTURES}/growth-{series.name}.svg)"
    title = f"**{series.name}**: {series.title}. `tidelog bench growth --only {series.name}`"
    return "\n\n".join([title, "\n".join([head, rule, *rows]), picture])


def filled(page: str, sections: Mapping[str, str]) -> str:
    """The page with other texts between its marks."""
    for name, text in sections.items():
        marks = re.compile(rf"(<!-- bench:{re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = marks.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
        if not count:
            raise CommandError(f"{PAGE} has no place for it: `<!-- bench:{name} -->` and `<!-- end -->` are missing")
    return page
