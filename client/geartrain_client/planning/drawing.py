"""A plan as a drawing: the flow from top to bottom, with its cut as a line across.

Beside the planner, for `gear plan --svg` and for pages. Every channel is a label on the line, between the
step that feeds it and the steps that read it. Guarantees: nothing overlaps, every text is escaped, and the
same plan gives the same drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Literal

from geartrain.graph.graph import Graph, Step
from geartrain.operators.source import is_in_cloud
from geartrain.planning.plan import Plan
from geartrain.planning.refusals import sentence
from geartrain.printable import printable
from geartrain.schema import derive
from geartrain_client.planning.cost import Costs, rate
from geartrain_client.planning.layout import Arrow, Box, place

Kind = Literal["edge", "cloud", "channel"]

_CHAR = 7.3
"""Width of a character of a monospaced font of 12 pixels."""
_LINE = 16.0
_PAD = 9.0
_ROW_GAP = 38.0
_MARGIN = 20.0
_SIDE = 104.0
"""Room at the left for the names of the tiers."""
_CHARS_MAX = 44
_STYLE = """
svg { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; background: #fff; }
text { fill: #1c2430; text-anchor: middle; }
.name { font-weight: 700; }
.more { fill: #55606e; }
rect.edge { fill: #e6f4ea; stroke: #2d7d4f; }
rect.cloud { fill: #e8eefb; stroke: #2f5fb3; }
rect.channel { fill: #fff7e0; stroke: #b7791f; }
rect.careful { stroke-dasharray: 5 3; }
path { fill: none; stroke: #6b7683; stroke-width: 1.3; }
.cut { stroke: #b7791f; stroke-width: 2; stroke-dasharray: 9 6; }
.tier { fill: #8a5a12; font-weight: 700; text-anchor: start; }
"""


@dataclass(frozen=True, slots=True)
class _Node:
    """A box: its lines of text, its tooltip, and how it looks."""

    id: str
    kind: Kind
    row: int
    lines: tuple[str, ...]
    title: str
    careful: bool = False

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _CHAR + 2 * _PAD

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PAD - 4


def draw(plan: Plan, costs: Costs | None = None, reasons: Mapping[str, str] | None = None) -> str:
    """The plan as an SVG document; `costs`: a measurement to be shown, `reasons`: by step, for tooltips."""
    nodes, arrows, lines = _nodes(plan, costs, reasons or {})
    middles, placed, width = place([Box(n.id, n.row, n.width) for n in nodes], arrows)
    tops = _tops(nodes)
    heights = {node.id: node.height for node in nodes}
    rows = {node.id: node.row for node in nodes}
    row_height = {row: max(n.height for n in nodes if n.row == row) for row in tops}
    total_width = _SIDE + width + 2 * _MARGIN
    total_height = max(tops[r] + row_height[r] for r in tops) + _MARGIN if tops else 2 * _MARGIN
    shift = _SIDE + _MARGIN
    parts = [_cut(tops[row] + row_height[row] / 2, total_width, down=down) for row, down in lines]
    for arrow in placed:
        first = rows[arrow.above]
        points = [(middles[arrow.above], tops[first] + _centred(row_height[first], heights[arrow.above]))]
        for number, x in enumerate(arrow.passes, first + 1):
            points += [(x, tops[number]), (x, tops[number] + row_height[number])]
        last = rows[arrow.below]
        points.append((middles[arrow.below], tops[last] + (row_height[last] - heights[arrow.below]) / 2))
        parts.append(_path(arrow, [(x + shift, y) for x, y in points]))
    parts += [_box(n, middles[n.id] + shift, tops[n.row] + (row_height[n.row] - n.height) / 2) for n in nodes]
    title = escape(
        f"flow {plan.graph.name}: {len(plan.edge)} steps on the devices, {len(plan.cloud)} in the cloud"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width:.0f} {total_height:.0f}" '
        f'width="{total_width:.0f}" height="{total_height:.0f}" role="img">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#6b7683;stroke:none"/></marker></defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _centred(row_height: float, height: float) -> float:
    """The lower end of a box in the middle of its row, below the row's top."""
    return (row_height + height) / 2


def _nodes(
    plan: Plan, costs: Costs | None, reasons: Mapping[str, str]
) -> tuple[list[_Node], list[tuple[str, str]], list[tuple[int, bool]]]:
    """(boxes, arrows between them, (row, whether it leads down to devices) of each cut)."""
    graph = plan.graph
    bands, rows = _rows(graph, plan.cut.edge)
    nodes = [_step(step, plan, rows[step.id], costs, reasons) for step in graph.steps]
    arrows: list[tuple[str, str]] = []
    for step in graph.steps:
        below = list(dict.fromkeys(graph.consumers(step.id)))
        here = step.id in plan.cut.edge
        arrows += [(step.id, one.id) for one in below if (one.id in plan.cut.edge) is here]
        across = [one for one in below if (one.id in plan.cut.edge) is not here]
        if across:
            channel = f"/{step.id}"
            row = _cut_row(bands, rows, bands[step.id])
            nodes.append(_channel(plan, step, channel, row, costs))
            arrows.append((step.id, channel))
            arrows += [(channel, one.id) for one in across]
    lines = [(_cut_row(bands, rows, band), band % 2 == 1) for band in range(max(bands.values(), default=0))]
    return nodes, arrows, lines


def _rows(graph: Graph, edge: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """(band, row) of each step: band 0 is the devices, 1 the cloud, 2 what comes down to devices again."""
    on_edge = frozenset(edge)
    bands: dict[str, int] = {}
    for step in graph.steps:
        band = max((bands[i.step] for i in step.inputs), default=0)
        bands[step.id] = band + (band % 2 == (step.id in on_edge))
    rows: dict[str, int] = {}
    start = 0
    for band in range(max(bands.values(), default=0) + 1):
        for step in graph.steps:
            if bands[step.id] == band:
                above = [rows[i.step] + 1 for i in step.inputs if bands[i.step] == band]
                rows[step.id] = max([start, *above])
        start = max((rows[s] for s in rows if bands[s] == band), default=start) + 2  # one row is the cut
    return bands, rows


def _cut_row(bands: Mapping[str, int], rows: Mapping[str, int], band: int) -> int:
    """The row of the cut below a band."""
    return max(row for step, row in rows.items() if bands[step] <= band) + 1


def _step(step: Step, plan: Plan, row: int, costs: Costs | None, reasons: Mapping[str, str]) -> _Node:
    kind = step.operator.kind
    out = "" if step.out is None else f" → {derive(step.out).name}"
    lines = [_short(step.id), _short(f"{kind}{out}")]
    if costs is not None and step.id in costs.steps and step.out is not None:
        lines.append(f"{costs.steps[step.id].cpu_us_per_record:.2f} µs a record")
    careful = not step.operator.replayable
    why = reasons.get(step.id) or sentence(plan.reason(step))
    title = f"{step.id}: {why}" + ("; not replayable" if careful else "")
    on_edge = step.id in plan.cut.edge and not is_in_cloud(step)
    if is_in_cloud(step):
        lines.append("in the cloud")
    return _Node(step.id, "edge" if on_edge else "cloud", row, tuple(lines), title, careful)


def _channel(plan: Plan, step: Step, name: str, row: int, costs: Costs | None) -> _Node:
    text = f"channel {step.id}"
    lines = [_short(text)]
    if costs is not None and step.id in costs.streams:
        stream = costs.streams[step.id]
        lines.append(
            f"{rate(costs.per_s(stream.records), 'records', costs.span(plan.graph))}, "
            f"{stream.bytes_per_record:.2f} B each"
        )
    fields = ", ".join(f"{f.name}: {f.type_name}" for f in derive(step.out).fields)
    return _Node(name, "channel", row, tuple(lines), f"{text}: {fields}")


def _tops(nodes: Iterable[_Node]) -> dict[int, float]:
    """The top of each row."""
    heights: dict[int, float] = {}
    for node in nodes:
        heights[node.row] = max(heights.get(node.row, 0.0), node.height)
    tops, top = {}, _MARGIN
    for row in sorted(heights):
        tops[row] = top
        top += heights[row] + _ROW_GAP
    return tops


def _short(text: str) -> str:
    text = printable(text)  # before it is cut: what is escaped is longer
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"


def _text(text: str) -> str:
    """Text of a flow as XML: escaped, and printable, since XML has no place for control characters."""
    return escape(printable(text))


def _cut(y: float, width: float, *, down: bool) -> str:
    above, below = ("cloud", "devices") if down else ("devices", "cloud")
    return (
        f'<line class="cut" x1="0" y1="{y:.1f}" x2="{width:.1f}" y2="{y:.1f}"/>'
        f'<text class="tier" x="8" y="{y - 10:.1f}">↑ {above}</text>'
        f'<text class="tier" x="8" y="{y + 20:.1f}">↓ {below}</text>'
    )


def _path(arrow: Arrow, points: list[tuple[float, float]]) -> str:
    """Curves between the rows, straight lines through them."""
    x, y = points[0]
    data = f"M{x:.1f} {y:.1f}"
    for number, (next_x, next_y) in enumerate(points[1:]):
        if number % 2 == 0:
            middle = (y + next_y) / 2
            data += f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}"
        else:
            data += f"L{next_x:.1f} {next_y:.1f}"
        x, y = next_x, next_y
    ends = f"{arrow.above.removeprefix('/')} to {arrow.below.removeprefix('/')}"
    return f'<path d="{data}" marker-end="url(#tip)"><title>{_text(ends)}</title></path>'


def _box(node: _Node, middle: float, top: float) -> str:
    style = f"{node.kind} careful" if node.careful else node.kind
    round_ = 14 if node.kind == "channel" else 4
    lines = "".join(
        f'<text class="{"name" if number == 0 else "more"}" x="{middle:.1f}" '
        f'y="{top + _PAD + 10 + number * _LINE:.1f}">{_text(line)}</text>'
        for number, line in enumerate(node.lines)
    )
    return (
        f'<g><title>{_text(node.title)}</title><rect class="{style}" x="{middle - node.width / 2:.1f}" '
        f'y="{top:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" rx="{round_}"/>{lines}</g>'
    )
