"""What a comparison gives: one figure, round by round, of Tidelog and of whoever is measured beside it.

Pure. A figure's ratio is always Tidelog's value over the other's: whether more or less of it is better stands in its
target. Rounds that were run in turn are compared one by one, since they met the same machine; the median of their
ratios is the result, and their least and greatest say how far to trust it.
"""

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

_TARGET = re.compile(r"(>=|<=) (\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Figure:
    row: str
    """Of which row of the table it is."""
    name: str
    unit: str
    tidelog: Sequence[float]
    """By round; never empty."""
    peer: str = ""
    """Whom it is compared with; empty: nobody."""
    beside: Sequence[float] = ()
    target: str = ""
    """`>= 2.5` or `<= 0.3`, of the ratio; empty: a figure to know."""
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.tidelog)

    @property
    def beside_value(self) -> float | None:
        return statistics.median(self.beside) if self.beside else None

    @property
    def ratios(self) -> list[float]:
        """Of each round; where there were not as many on both sides, what they could be at the least and greatest."""
        if not self.beside:
            return []
        if len(self.beside) == len(self.tidelog):
            return [_over(ours, theirs) for ours, theirs in zip(self.tidelog, self.beside, strict=True)]
        extremes = [(min(self.tidelog), max(self.beside)), (max(self.tidelog), min(self.beside))]
        return [_over(ours, theirs) for ours, theirs in extremes]

    @property
    def ratio(self) -> float | None:
        if not self.beside:
            return None
        if len(self.beside) == len(self.tidelog):
            return statistics.median(self.ratios)
        return _over(self.value, statistics.median(self.beside))

    @property
    def met(self) -> bool | None:
        """None: nothing was asked for, or nobody is there to compare with."""
        if not self.target or self.ratio is None:
            return None
        relation, bound = parse_target(self.target)
        return self.ratio >= bound if relation == ">=" else self.ratio <= bound

    @property
    def less_is_better(self) -> bool:
        return self.target.startswith("<=")


def _over(ours: float, theirs: float) -> float:
    """A value of nothing at all (no CPU used) is as good as very little."""
    return ours / max(theirs, 1e-9)


def parse_target(text: str) -> tuple[str, float]:
    found = _TARGET.fullmatch(text)
    assert found, f"a target is written `>= 2.5` or `<= 0.3`, not `{text}`"
    return found[1], float(found[2])


@dataclass(frozen=True, slots=True)
class Series:
    """How something grows: columns of numbers, the first of which is what was changed."""

    name: str
    title: str
    columns: Sequence[str]
    points: Sequence[Sequence[float]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """All that one run measured, and where."""

    about: Mapping[str, object]
    figures: Sequence[Figure] = ()
    series: Sequence[Series] = ()
    remarks: Sequence[str] = field(default_factory=list)
    """What a reader must know: a peer that could not be had, a row that failed."""

    def to_json(self) -> str:
        content = asdict(self)
        for figure, kept in zip(self.figures, content["figures"], strict=True):
            kept |= {"ratio": figure.ratio, "met": figure.met}  # for readers; not read again
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def results_from(text: str) -> Results:
    content: dict[str, Any] = json.loads(text)
    figures = [
        Figure(**{name: value for name, value in kept.items() if name not in ("ratio", "met")})
        for kept in content["figures"]
    ]
    series = [Series(**kept) for kept in content["series"]]
    return Results(content["about"], figures, series, content["remarks"])


def alternate(actions: Mapping[str, Callable[[], T]], rounds: int, warm_up: int) -> dict[str, list[T]]:
    """Run all in turn, another one first each time; the first `warm_up` rounds do not count, for anybody."""
    names = list(actions)
    measured: dict[str, list[T]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            result = actions[name]()
            if number >= warm_up:
                measured[name].append(result)
    return measured


# --- In words --------------------------------------------------------------------------------------------------------


def quantity(value: float | None) -> str:
    """Three digits are more than such a machine knows."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def verdict(figure: Figure) -> str:
    return {None: "", True: "ok", False: "MISS"}[figure.met]


def ratio_text(figure: Figure) -> str:
    if figure.ratio is None:
        return "–"
    return f"{figure.ratio:.2f} ({min(figure.ratios):.2f}–{max(figure.ratios):.2f})"


def figure_lines(figures: Sequence[Figure]) -> list[str]:
    """For the terminal."""
    cells = [
        (
            verdict(figure),
            figure.row,
            figure.name,
            f"{quantity(figure.value)} {figure.unit}",
            f"{figure.peer} {quantity(figure.beside_value)}" if figure.peer else "",
            ratio_text(figure),
            f"(target {figure.target})" if figure.target else "",
            figure.note,
        )
        for figure in figures
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def series_lines(series: Series) -> list[str]:
    cells = [list(series.columns), *([_cell(value) for value in point] for point in series.points)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  " + "  ".join(t.rjust(width) for t, width in zip(line, widths, strict=True)) for line in cells]
    return [f"{series.name}: {series.title}", *rows, *([f"  {series.note}"] if series.note else [])]


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else quantity(value)
