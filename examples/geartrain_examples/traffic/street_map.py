"""Where the streets of a city lie: from the positions of its detectors, from their names, or on a circle.

Beside the page of the traffic demo. A street is a directed edge between two checkpoints; its name often says
which: `A0A1` leads from A0 to A1, `left2A2` comes into the city from the left. Guarantees: the same streets
and positions give the same map, and every street has a place on it. A map has no fixed size: x grows to
the right, y upwards, in metres where positions are known and in blocks otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import cos, pi, sin
from statistics import fmean

Point = tuple[float, float]

_NAME = r"[A-Za-z]+\d+"
_ENDS = (
    re.compile(rf"({_NAME})[-_.:]?({_NAME})"),
    re.compile(r"(.+?)\s*(?:->|→|--|~|:|/|\bto\b)\s*(.+)"),
    re.compile(r"([^-_]+)[-_]([^-_]+)"),
)
_CROSSING = re.compile(r"([A-Z]{1,2})(\d+)")
_OUTSIDE = re.compile(r"(left|right|top|bottom)(\d+)")
_DETECTOR = re.compile(r"(?:[A-Za-z]+_)?(.+?)(?:_\d+)?")

ROUNDS = 60
"""In which crossings find their places between the middles of their streets (least squares, Gauss-Seidel)."""


@dataclass(frozen=True, slots=True)
class Street:
    """A street from `start` to `end`, the names of its checkpoints; None where its name does not say them."""

    edge: str
    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class StreetMap:
    """Checkpoints and streets with their places; a street without checkpoints begins and ends at one point.

    layout: where the places come from, `checkpoints` (positions of detectors), `grid` (names) or `circle`.
    """

    layout: str
    crossings: Mapping[str, Point]
    streets: Mapping[str, tuple[Street, Point, Point]]


def street_of(edge: str, known: frozenset[str] = frozenset()) -> Street:
    """The two ends of a street, by its name; `known`: names of checkpoints to look for first.

    >>> street_of("left0A0")
    Street(edge='left0A0', start='left0', end='A0')
    """
    for cut in range(1, len(edge)) if known else ():
        start, end = edge[:cut], edge[cut:].lstrip("-_.:>/ ")
        if end in known and start.rstrip("-_.:/ ") in known:
            return Street(edge, start.rstrip("-_.:/ "), end)
    for pattern in _ENDS:
        if found := pattern.fullmatch(edge):
            return Street(edge, found[1], found[2])
    return Street(edge, None, None)


def lay_out(edges: Iterable[str], positions: Mapping[str, Point]) -> StreetMap:
    """The map of these streets; `positions`: of detectors, in metres, as far as they are known."""
    places = _by_place(positions)
    known = frozenset(places)
    streets = [street_of(edge, known) for edge in sorted(set(edges))]
    names = sorted({n for s in streets for n in (s.start, s.end) if n is not None})
    middles = {s.edge: places[s.edge] for s in streets if s.edge in places}
    crossings = _at_one_end(streets, middles)
    if crossings:
        middles = {s.edge: middles[s.edge] for s in streets if s.start is None and s.edge in middles}
    crossings |= {name: places[name] for name in names if name in places}
    layout = "checkpoints" if crossings or middles else "grid"
    if layout == "checkpoints":
        _between(crossings, middles, streets)
    elif names and all(_CROSSING.fullmatch(n) or _OUTSIDE.fullmatch(n) for n in names):
        crossings = _grid(names)
    else:
        layout = "circle"
    loose = [n for n in names if n not in crossings]
    loose += [f"/{s.edge}" for s in streets if s.start is None and s.edge not in middles]
    on_circle = _circle(loose, [*crossings.values(), *middles.values()])
    crossings |= {n: p for n, p in on_circle.items() if not n.startswith("/")}
    placed = {}
    for street in streets:
        if street.start is not None and street.end is not None:
            placed[street.edge] = (street, crossings[street.start], crossings[street.end])
        else:
            point = middles.get(street.edge) or on_circle[f"/{street.edge}"]
            placed[street.edge] = (street, point, point)
    return StreetMap(layout, crossings, placed)


def _by_place(positions: Mapping[str, Point]) -> dict[str, Point]:
    """Positions by what a detector is named after, its street or its checkpoint, `cam_A0A1_0` as `A0A1`."""
    found: dict[str, list[Point]] = {}
    for detector, point in positions.items():
        named = _DETECTOR.fullmatch(detector)
        for name in {detector, named[1] if named else detector}:
            found.setdefault(name, []).append(point)
    return {name: (fmean(x for x, _ in at), fmean(y for _, y in at)) for name, at in found.items()}


def _at_one_end(streets: Iterable[Street], places: Mapping[str, Point]) -> dict[str, Point]:
    """The crossings at which the cameras stand, if each stands where its street begins, or where it ends.

    That is so where both ways of a street have cameras far apart, but all those that begin (or end) at one
    crossing have one place. Empty where cameras stand in the middle of their streets.
    """
    ways = {(s.start, s.end): places[s.edge] for s in streets if s.start and s.end and s.edge in places}
    if all(ways.get((end, start), at) == at for (start, end), at in ways.items()):
        return {}
    for side in (0, 1):
        found: dict[str, Point] = {}
        for ends, at in ways.items():
            if found.setdefault(ends[side], at) != at:
                break
        else:
            return found
    return {}


def _between(crossings: dict[str, Point], middles: Mapping[str, Point], streets: Iterable[Street]) -> None:
    """Place the crossings whose streets have known middles, or whose neighbours are placed."""
    near: dict[str, dict[str, Point | None]] = {}
    for street in streets:
        if street.start is not None and street.end is not None:
            for one, other in ((street.start, street.end), (street.end, street.start)):
                middle = middles.get(street.edge) or near.get(one, {}).get(other)
                near.setdefault(one, {})[other] = middle
    loose = [name for name in near if name not in crossings]
    for name in loose:
        known = [middle for middle in near[name].values() if middle is not None]
        if len(near[name]) > 1 and known:
            crossings[name] = _mean(known)
    for _ in range(ROUNDS):
        for name in loose:
            wishes = [_across(crossings[o], middle) for o, middle in near[name].items() if o in crossings]
            if wishes:
                crossings[name] = _mean(wishes)


def _across(point: Point, middle: Point | None) -> Point:
    """The other end of a street from `point`; `point` itself where nobody knows the middle."""
    return point if middle is None else (2 * middle[0] - point[0], 2 * middle[1] - point[1])


def _mean(points: list[Point]) -> Point:
    return fmean(x for x, _ in points), fmean(y for _, y in points)


def _grid(names: Iterable[str]) -> dict[str, Point]:
    """Places of crossings named by column and row, and of the ends of streets that lead out of the grid."""
    crossings = {n: (_column(m[1]), int(m[2])) for n in names if (m := _CROSSING.fullmatch(n))}
    right = max((x for x, _ in crossings.values()), default=0) + 1
    top = max((y for _, y in crossings.values()), default=0) + 1
    places: dict[str, Point] = {n: (float(x), float(y)) for n, (x, y) in crossings.items()}
    for name in names:
        if found := _OUTSIDE.fullmatch(name):
            along = float(found[2])
            sides = {"left": (-0.7, along), "right": (right - 0.3, along)}
            sides |= {"bottom": (along, -0.7), "top": (along, top - 0.3)}
            places[name] = sides[found[1]]
    return places


def _column(letters: str) -> int:
    """0 for A, 25 for Z, 26 for AA.

    >>> [_column(letters) for letters in ("A", "Z", "AA")]
    [0, 25, 26]
    """
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1


def _circle(names: Iterable[str], inside: list[Point]) -> dict[str, Point]:
    """Places on a circle around what is placed already."""
    every = list(names)
    xs, ys = [x for x, _ in inside] or [0.0], [y for _, y in inside] or [0.0]
    middle = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    radius = 0.75 * max(max(xs) - min(xs), max(ys) - min(ys)) or max(1.0, len(every) / (2 * pi))
    angles = {name: pi / 2 - 2 * pi * index / len(every) for index, name in enumerate(every)}
    return {n: (middle[0] + radius * cos(a), middle[1] + radius * sin(a)) for n, a in angles.items()}
