"""The windows, aggregates, reduces and folds of the random flows: how one is drawn and put behind what is
there.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from geartrain import agg
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import EveryRecords, EveryTime, Global, Session, Sliding, Tumbling
from tests.reference import records, summaries
from tests.reference.calendars import CALENDARS
from tests.reference.steps import KEYS, RARELY, DrawStep, Known, Made, keyed


def _combine(draw: st.DrawFn, known: Known) -> None:
    """reduce or fold, windowed or not."""
    reducing = draw(st.booleans())
    above = known.pick(draw, timely=True, kind=records.Reading if reducing else None)
    by = keyed(draw, known, above)
    wide = False
    if draw(st.booleans()):
        by, wide = _windowed(draw, known, by)
    if reducing:
        made = known.call(by, "reduce", known.name("reduce"), summaries.newest)
    else:
        make, function, result = draw(_folds)
        made = known.call(by, "fold", known.name("fold"), make, function, result=result)
    known.add(made, above, joined=wide)


def _windowed(draw: st.DrawFn, known: Known, by: Made) -> tuple[Made, bool]:
    """(a window of a keyed stream, whether a record lies in several)."""
    window = draw(_windows)
    made = known.call(by, "window", window)
    made.kind = type(window)
    return made, isinstance(window, Sliding)


def draw_split(draw: st.DrawFn, known: Known) -> None:
    """An aggregate that may be split, rather below a source than not."""
    above = next(m for m in reversed(known.streams) if m.source or (draw(_mostly) and not m.joined))
    key = draw(KEYS)
    by = keyed(draw, known, above, key)
    made = known.call(by, "window", draw(_splittable))
    out: Any = summaries.Everything if known.code[-1].endswith("Global())") else summaries.Summary
    made = known.call(made, "aggregate", known.name("aggregate"), out=out, **_fields(draw, key))
    known.add(made, above, joined=True)


def draw_whole(draw: st.DrawFn, known: Known) -> None:
    """An aggregate of whole numbers and texts by a field, rather below a source than not."""
    whole = [m for m in known.streams if m.kind is records.Reading and m.timely]
    above = next(m for m in reversed(whole) if m.source or draw(RARELY))
    key = draw(st.sampled_from(["key", "key", "n"]))
    by = known.call(above, "key_by", key, name=known.name("by"))
    made = known.call(by, "window", draw(_whole_windows))
    fields: dict[str, Any] = {
        "x": draw(st.sampled_from(summaries.WHOLE)),
        "note": draw(st.sampled_from(summaries.WHOLE_NOTES)),
    }
    fields |= {"n": draw(st.sampled_from(summaries.WHOLE))} if key == "key" else {"key": agg.min("key")}
    known.add(known.call(made, "aggregate", known.name("whole"), out=summaries.Whole, **fields), above)


def _fields(draw: st.DrawFn, key: Any) -> dict[str, Any]:
    """What is computed, by the name of the field that it fills."""
    fields: dict[str, Any] = {
        "n": draw(st.sampled_from(summaries.NUMBERS)),
        "x": draw(st.sampled_from(summaries.SIZES)),
        "note": draw(st.sampled_from(summaries.NOTES)),
        "top": draw(st.sampled_from(summaries.TOPS)),
    }
    if key != "key" and not draw(RARELY):
        fields["key"] = summaries.KEY  # else the whole key, which does not fit
    return fields


def _aggregate(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw, timely=True)
    key = draw(KEYS)
    by = keyed(draw, known, above, key)
    fields = _fields(draw, key)
    out: Any = summaries.Rolling
    wide = False
    if draw(_mostly):
        by, wide = _windowed(draw, known, by)
        out = summaries.Everything if by.kind is Global else summaries.Summary
        if (early := draw(_earlies)) is not None:
            fields["early"] = early
    made = known.call(by, "aggregate", known.name("aggregate"), out=out, **fields)
    known.add(made, above, joined=wide)


_mostly = st.sampled_from([True, True, True, False])
_SPLITTABLE: list[Any] = [
    *[Tumbling(10), Tumbling(7, 3), Tumbling(1), Tumbling(10**6, -5), Sliding(10, 5), Sliding(12, 5, 1)],
    *[Sliding(4, 9), Sliding(9, 3, -2), Global(), *CALENDARS],
]
_splittable = st.sampled_from(_SPLITTABLE)
_whole_windows = st.sampled_from(
    [window for window in _SPLITTABLE if not isinstance(window, Global | Calendar)]
)
_windows: st.SearchStrategy[Any] = st.sampled_from(
    [*_SPLITTABLE, Session(1), Session(4), Session(10), Session(10**6)]
)
_earlies = st.sampled_from(
    [
        None,
        None,
        EveryRecords(1),
        EveryRecords(2),
        EveryRecords(3),
        EveryTime(2),
        EveryTime(5),
        EveryTime(999),
    ]
)
_folds = st.sampled_from(
    [
        (summaries.no_total, summaries.add_up, summaries.show),
        (summaries.Log, summaries.write_down, summaries.read_out),
    ]
)

STEPS: list[DrawStep] = [*[_combine] * 3, *[_aggregate] * 3, draw_whole]
"""Each as often as it shall be drawn."""
