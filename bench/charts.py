"""Charts for the docs, as SVG and by hand: a chart here is a few bars or a few lines, and needs no library.

Pure: figures in, text out, the same text for the same figures, so that a diff of the docs shows what has changed.
"""

import math
from collections.abc import Sequence
from html import escape

from bench.figures import Figure, Series, parse_target, quantity

WIDTH = 860
LABEL_WIDTH, LABEL_CHARACTERS = 400, 66
BAR_HEIGHT, BAR_STEP = 14, 24
TOP, MARGIN = 46, 16
GOOD, BAD, PLAIN, PALE, DARK = "#2a7f62", "#c0492f", "#5b7aa0", "#d8dde3", "#333"
RATIO_MIN, RATIO_MAX = 1 / 64, 64.0
LINE_COLORS = ("#2a7f62", "#5b7aa0", "#c0492f", "#8a6bb1", "#b08a2e")
PANEL_WIDTH, PANEL_HEIGHT = 260, 170
PANELS_A_LINE = 3


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>'
    return "\n".join([head, background, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = DARK, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width:.1f}"/>'
    )


def ratio_chart(figures: Sequence[Figure], title: str) -> str:
    """A bar a figure from 1 to its ratio, on a logarithmic scale; a thin line its spread; a dark mark its target."""
    shown = [figure for figure in figures if figure.ratio is not None]
    reach = max((abs(math.log2(_within(value))) for figure in shown for value in _extent(figure)), default=1.0)
    reach = max(1.0, math.ceil(reach))
    left, right = float(LABEL_WIDTH), float(WIDTH - 64)

    def place(ratio: float) -> float:
        return left + (right - left) * (math.log2(_within(ratio)) + reach) / (2 * reach)

    height = TOP + BAR_STEP * len(shown) + MARGIN
    parts = [_text(MARGIN, 20, title, size=14)]
    for power in range(-int(reach), int(reach) + 1):
        x = place(2.0**power)
        label = f"{2**power}×" if power >= 0 else f"1/{2**-power}"
        parts += [
            _line(x, TOP - 8, x, height - MARGIN, DARK if not power else PALE),
            _text(x, TOP - 12, label, "middle"),
        ]
    for number, figure in enumerate(shown):
        assert figure.ratio is not None
        y = TOP + number * BAR_STEP
        color = {True: GOOD, False: BAD, None: PLAIN}[figure.met]
        begin, end = sorted((place(1.0), place(figure.ratio)))
        label = figure.name + ("" if figure.peer == "Kafka" else f" (÷ {figure.peer.removeprefix('Kafka, ')})")
        if len(label) > LABEL_CHARACTERS:
            label = label[: LABEL_CHARACTERS - 1] + "…"
        parts.append(_text(LABEL_WIDTH - 8, y + BAR_HEIGHT - 2, label, "end", size=11))
        parts.append(
            f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="{BAR_HEIGHT}" fill="{color}"/>'
        )
        low, high = place(min(figure.ratios)), place(max(figure.ratios))
        parts.append(_line(low, y + BAR_HEIGHT / 2, high, y + BAR_HEIGHT / 2, DARK))
        if figure.target:
            x = place(parse_target(figure.target)[1])
            parts.append(_line(x, y - 3, x, y + BAR_HEIGHT + 3, DARK, 2.5))
        parts.append(_text(right + 8, y + BAR_HEIGHT - 2, f"{figure.ratio:.2f}", color=color))
    return _svg(WIDTH, height, parts)


def _within(ratio: float) -> float:
    return min(max(ratio, RATIO_MIN), RATIO_MAX)


def _extent(figure: Figure) -> list[float]:
    return [*figure.ratios, *([parse_target(figure.target)[1]] if figure.target else [])]


def series_chart(series: Series) -> str:
    """A panel a column, both axes logarithmic where the numbers allow it: a straight line is a power of what grows."""
    columns = list(enumerate(series.columns))[1:]
    lines = math.ceil(len(columns) / PANELS_A_LINE)
    width = PANEL_WIDTH * min(PANELS_A_LINE, len(columns)) + MARGIN
    parts = [_text(MARGIN, 20, f"{series.name}: {series.title}", size=13)]
    for number, (column, name) in enumerate(columns):
        x, y = PANEL_WIDTH * (number % PANELS_A_LINE), 34 + PANEL_HEIGHT * (number // PANELS_A_LINE)
        pairs = [(point[0], point[column]) for point in series.points]
        parts.append(
            f'<g transform="translate({x},{y})">{_panel(series.columns[0], name, pairs, LINE_COLORS[number % 5])}</g>'
        )
    return _svg(width, 34 + PANEL_HEIGHT * lines, parts)


def _panel(x_name: str, y_name: str, pairs: Sequence[tuple[float, float]], color: str) -> str:
    left, right, top, bottom = 58.0, PANEL_WIDTH - 12.0, 26.0, PANEL_HEIGHT - 34.0
    place_x = _Axis([x for x, _ in pairs], left, right)
    values = [y for _, y in pairs]
    place_y = _Axis([*values, 0.0] if min(values) <= 0 or max(values) < 10 * min(values) else values, bottom, top)
    points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in pairs)
    low, high = min(values), max(values)
    return "".join(
        [
            _text(left, top - 8, y_name, size=11),
            _line(left, bottom, right, bottom, PALE),
            _line(left, top, left, bottom, PALE),
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>',
            *(f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3" fill="{color}"/>' for x, y in pairs),
            _text(left - 6, place_y(high) + 4, quantity(high), "end", size=10),
            *([_text(left - 6, place_y(low) + 4, quantity(low), "end", size=10)] if high > low * 1.2 else []),
            *(
                _text(place_x(x), bottom + 14, _short(x), "middle", size=10)
                for x in (pairs[0][0], pairs[len(pairs) // 2][0], pairs[-1][0])
            ),
            _text((left + right) / 2, bottom + 28, x_name, "middle", size=10),
        ]
    )


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}" if value % size == 0 else f"{value / size:.1f}{unit}"
    return f"{value:g}"


class _Axis:
    """From values to places: logarithmic where all values are above zero and far apart, else linear."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._log = min(values) > 0 and max(values) >= 10 * min(values)
        self._begin, self._end = begin, end
        scaled = [self._scale(value) for value in values]
        self._low, self._span = min(scaled), (max(scaled) - min(scaled)) or 1.0

    def _scale(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        return self._begin + (self._end - self._begin) * (self._scale(value) - self._low) / self._span
