"""The drawing of a plan: well formed, everything in it, and nothing over anything else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from geartrain import Flow, Record, Table
from geartrain.flow.loading import load_flow
from geartrain.planning import Plan, legal_cuts, make_plan
from geartrain.testing import TestingSource
from geartrain_client.planning.cost import Costs, StepCost, StreamCost
from geartrain_client.planning.drawing import draw
from geartrain_client.planning.layout import GAP, Box, place

EXAMPLES = ["stocks", "wordcount", "complexdag", "sol", "sensors", "traffic"]
SVG = "{http://www.w3.org/2000/svg}"
CHARACTER_PX = 7.25
"""Of a monospaced font of 12 pixels: 0.604 em, that of DejaVu Sans Mono, is among the widest."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    """A box of the drawing with its texts."""

    left: float
    top: float
    width: float
    height: float
    kind: str
    texts: tuple[tuple[float, float, str], ...]

    @property
    def name(self) -> str:
        return self.texts[0][2]

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def holds(self, point: Point, margin: float = 0.5) -> bool:
        x, y = point
        inside_x = self.left + margin < x < self.left + self.width - margin
        return inside_x and self.top + margin < y < self.bottom - margin

    def overlaps(self, other: Rect) -> bool:
        apart_x = self.left + self.width <= other.left or other.left + other.width <= self.left
        return not (apart_x or self.bottom <= other.top or other.bottom <= self.top)


@dataclass(frozen=True)
class Drawing:
    """A parsed drawing."""

    width: float
    height: float
    boxes: tuple[Rect, ...]
    arrows: tuple[tuple[Point, ...], ...]
    cuts: tuple[float, ...]
    tiers: tuple[tuple[float, str], ...]

    @staticmethod
    def of(svg: str) -> Drawing:
        root = ElementTree.fromstring(svg)  # noqa: S314 - our own
        boxes = []
        for group in root.iter(f"{SVG}g"):
            rect = group.find(f"{SVG}rect")
            assert rect is not None
            texts = tuple(
                (float(t.attrib["x"]), float(t.attrib["y"]), t.text or "") for t in group.iter(f"{SVG}text")
            )
            left, top, wide, high = (float(rect.attrib[a]) for a in ("x", "y", "width", "height"))
            boxes.append(Rect(left, top, wide, high, rect.attrib["class"], texts))
        arrows = tuple(points_of(p.attrib["d"]) for p in root.findall(f"{SVG}path"))
        cuts = tuple(float(c.attrib["y1"]) for c in root.findall(f"{SVG}line"))
        tiers = tuple((float(t.attrib["y"]), t.text or "") for t in root.findall(f"{SVG}text"))
        return Drawing(
            float(root.attrib["width"]), float(root.attrib["height"]), tuple(boxes), arrows, cuts, tiers
        )


def points_of(path: str) -> tuple[Point, ...]:
    """Points along a path of cubic curves and lines, many on each."""
    found: list[Point] = []
    for command, numbers in re.findall(r"([MCL])([-\d. ]+)", path):
        values = [float(n) for n in numbers.split()]
        points = list(zip(values[::2], values[1::2], strict=True))
        if command == "M":
            found += points
            continue
        start = found[-1]
        controls = [start, *points] if command == "C" else [start, start, points[0], points[0]]
        for step in range(1, 41):
            t = step / 40
            weights = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]
            x = sum(w * p[0] for w, p in zip(weights, controls, strict=True))
            y = sum(w * p[1] for w, p in zip(weights, controls, strict=True))
            found.append((x, y))
    return tuple(found)


def check(plan: Plan, costs: Costs | None = None) -> Drawing:
    """Draw a plan and assert that it can be read."""
    found = Drawing.of(draw(plan, costs))
    for one, other in combinations(found.boxes, 2):
        assert not one.overlaps(other), f"{one.name} lies over {other.name}"
    for box in found.boxes:
        assert box.left >= 0
        assert box.left + box.width <= found.width
        assert box.bottom <= found.height
        for x, y, text in box.texts:
            assert box.left < x - len(text) * CHARACTER_PX / 2, f"{text!r} is wider than its box"
            assert box.top + 8 < y < box.bottom - 2
        for (_, y, _), (_, below, _) in pairwise(box.texts):
            assert below - y >= 14
    for arrow in found.arrows:
        for box in found.boxes:
            assert not any(box.holds(point) for point in arrow), f"an arrow runs over {box.name}"
        assert all(y >= x for x, y in pairwise(y for _, y in arrow)), "an arrow runs upward"
    steps = {s.id for s in plan.graph.steps}
    assert {b.name for b in found.boxes if b.kind.split()[0] != "channel"} == steps
    channels = {c.id for c in (*plan.channels, *plan.down) if not c.id.startswith("_")}
    assert {b.name for b in found.boxes if b.kind == "channel"} == {f"channel {c}" for c in channels}
    return found


def check_one_cut(found: Drawing) -> None:
    """Assert that a line parts the devices from the cloud, with every channel on it."""
    (line,) = found.cuts
    for box in found.boxes:
        kind = box.kind.split()[0]
        if kind == "channel":
            assert box.top < line < box.bottom
        else:
            assert (box.bottom < line) if kind == "edge" else (box.top > line)
    assert [text for _, text in found.tiers] == ["↑ devices", "↓ cloud"]
    assert found.tiers[0][0] < line < found.tiers[1][0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_cuts_of_an_example_can_be_read(name: str) -> None:
    graph = load_flow(f"geartrain_examples.{name}.flow:flow").graph()
    cuts = legal_cuts(graph)
    for cut in cuts[:: len(cuts) // 20 + 1]:
        check_one_cut(check(make_plan(graph, sorted(cut.edge))))


def test_what_comes_down_to_devices_has_a_line_of_its_own() -> None:
    found = check(make_plan(load_flow("geartrain_examples.control_loop.flow:flow").graph(), "edge"))
    boxes = {box.name: box for box in found.boxes}
    up, down = found.cuts
    assert [text for _, text in found.tiers] == ["↑ devices", "↓ cloud", "↑ cloud", "↓ devices"]
    assert boxes["channel command_down"].top < down < boxes["channel command_down"].bottom
    assert up < boxes["means"].top < boxes["command_down"].bottom < down < boxes["command"].top
    assert boxes["command"].kind == boxes["valve"].kind == "edge"


def test_a_measurement_is_written_into_the_boxes() -> None:
    graph = load_flow("geartrain_examples.stocks.flow:flow").graph()
    streams = {s.id: StreamCost(1_000, 4_567) for s in graph.steps if s.out is not None}
    steps = {s.id: StepCost(1_000, 0.005) for s in graph.steps}
    plan = make_plan(graph, "edge")
    found = check(plan, Costs(10.0, True, 10.0, True, streams, steps))
    texts = {box.name: [text for _, _, text in box.texts[1:]] for box in found.boxes}
    assert texts["channel quotes"] == ["100 records/s, 4.57 B each"]
    assert texts["drawdown"] == ["process → Report", "5.00 µs a record"]
    assert texts["prices"] == ["sink"]


class Row(Record):
    name: str


def test_text_of_a_flow_is_escaped_and_cut() -> None:
    Hostile = type("A<script>&\x07" + "b" * 60, (Row,), {"__module__": __name__})  # noqa: N806
    flow = Flow("names")
    rows = flow.source("rows", TestingSource[Row](), out=Hostile)
    rows.filter(bool, name="a" * 63).sink("s", Table("t"))
    svg = draw(make_plan(flow.graph(), "edge"), None, {"rows": "because of </title><b>"})
    assert "<script>" not in svg
    assert "\x07" not in svg
    found = Drawing.of(svg)
    assert max(len(text) for box in found.boxes for _, _, text in box.texts) <= 44
    assert draw(make_plan(flow.graph(), "edge"), None, {"rows": "because of </title><b>"}) == svg


def test_boxes_of_a_row_are_apart_and_arrows_go_straight_where_they_can() -> None:
    boxes = [Box(f"b{n}", n % 3, 40.0 + 17 * (n % 5)) for n in range(18)]
    arrows = [(a.id, b.id) for a, b in combinations(boxes, 2) if a.row < b.row and (a.row + b.row) % 2 == 1]
    middles, placed, width = place([*boxes, Box("far", 5, 60.0)], [*arrows, ("b0", "far")])
    for row in range(3):
        edges = sorted(
            (middles[b.id] - b.width / 2, middles[b.id] + b.width / 2) for b in boxes if b.row == row
        )
        assert all(right + GAP <= left + 1e-6 for (_, right), (left, _) in pairwise(edges))
    long = placed[-1].passes
    assert len(long) == 4
    assert len(set(long[1:])) == 1, "nothing is in its way below the boxes"
    assert all(0 <= x <= width for x in middles.values())


def test_an_empty_drawing_is_no_error() -> None:
    assert place([], []) == ({}, [], 0.0)
