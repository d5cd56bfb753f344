"""A curve as SVG: one measure over sizes that grow by powers of ten, median with range, by hand.

The vertical axis begins at 0, so that what does not grow is seen to be flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 40, 48, 108
CAPTION_CHARS = 88
TICKS = 5
STYLE = """\
svg { font: 12px system-ui, "DejaVu Sans", Arial, sans-serif; background: #fff; }
text { fill: #1c2430; }
.title { font-size: 15px; font-weight: 700; }
.more { fill: #55606e; font-size: 11px; }
.grid { stroke: #dde2e8; }
.axis { stroke: #6b7683; }
.curve { fill: none; stroke: #2f5fb3; stroke-width: 2; }
.range { stroke: #2f5fb3; stroke-width: 1.5; opacity: .55; }
.point { fill: #2f5fb3; }
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A measure at one size: median, lowest and highest round."""

    x: float
    median: float
    low: float
    high: float


def draw(path: Path, title: str, axes: tuple[str, str], points: Sequence[Point], caption: str) -> None:
    """Write the curve; axes: what is across and what is up; caption: where and how it was measured."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(_svg(title, axes, points, caption), encoding="utf-8")


def _svg(title: str, axes: tuple[str, str], points: Sequence[Point], caption: str) -> str:
    step = _step(max(point.high for point in points) / TICKS)
    highest = step * math.ceil(max(point.high for point in points) / step)
    first, last = (math.log10(end) for end in (points[0].x, points[-1].x))

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(x) - first) / (last - first)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / highest

    foot, parts = up(0), [f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>']
    for number in range(round(highest / step) + 1):
        y = up(number * step)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number * step:,.4g}</text>')
    for point in points:
        x = across(point.x)
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{foot:.1f}" x2="{x:.1f}" y2="{foot + 5:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{foot + 19:.1f}" text-anchor="middle">{point.x:,.0f}</text>')
        low, high = up(point.low), up(point.high)
        parts.append(f'<line class="range" x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}"/>')
    way = " ".join(f"{across(point.x):.1f},{up(point.median):.1f}" for point in points)
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{foot:.1f}" x2="{WIDTH - RIGHT}" y2="{foot:.1f}"/>')
    parts.append(f'<polyline class="curve" points="{way}"/>')
    for point in points:
        told = f"<title>{point.x:,.0f}: {point.median:,.3g}</title>"
        x, y = across(point.x), up(point.median)
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{told}</circle>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{foot + 38:.1f}" text-anchor="end">{escape(axes[0])}</text>')
    parts.append(f'<text class="more" x="{LEFT}" y="42">{escape(axes[1])}</text>')
    for number, line in enumerate(wrap(caption, CAPTION_CHARS)):
        y = HEIGHT - 44 + 15 * number
        parts.append(f'<text class="more" x="{LEFT}" y="{y}">{escape(line)}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    )
    body = "\n".join(parts)
    return f"{head}\n<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n{body}\n</svg>\n"


def _step(least: float) -> float:
    """The next of 1, 2, 5, 10, ... that is no less."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(power * one for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))
