"""Rounds of two contenders in turn, so that whatever else the machine does hits both alike."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds of each round: what is measured, and the floor beside it."""

    ours: Sequence[float]
    floor: Sequence[float]

    @property
    def ratio(self) -> float:
        """Floor's time over ours, median over the rounds: 1 is as fast as the floor."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        return [floor / ours for ours, floor in zip(self.ours, self.floor, strict=True)]


def compare(ours: Callable[[], float], floor: Callable[[], float], rounds: int, warm_up: int = 1) -> Comparison:
    """Run both in turn, changing who goes first; the first `warm_up` rounds do not count."""
    measured: list[tuple[float, float]] = []
    for number in range(warm_up + rounds):
        if number % 2:
            floor_s = floor()
            ours_s = ours()
        else:
            ours_s = ours()
            floor_s = floor()
        measured.append((ours_s, floor_s))
    counted = measured[warm_up:]
    return Comparison([ours_s for ours_s, _ in counted], [floor_s for _, floor_s in counted])


def spread(values: Sequence[float], digits: int = 0) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report."""

    name: str
    value: str
    target: str = ""  # empty: a figure to know, without a target
    met: bool = True
    note: str = ""
    raw: Mapping[str, object] = field(default_factory=dict)
    """What was measured, for `--json`."""


def print_report(lines: Sequence[Line]) -> None:
    width = max(len(line.name) for line in lines)
    for line in lines:
        mark = "" if not line.target else "ok" if line.met else "MISS"
        target = f"(target {line.target})  " if line.target else ""
        print(f"{mark:4} {line.name:{width}}  {line.value:>12}  {target}{line.note}")
