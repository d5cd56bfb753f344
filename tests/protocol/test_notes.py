"""Units and descriptions of fields: people read them, and nothing else is another for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest

from geartrain import Description, Digits, Flow, Record, SourceStream, Table, Unit, agg, tumbling
from geartrain.errors import SchemaError
from geartrain.planning import make_plan
from geartrain.revision import Revision, change_of, differences, revision_of, table_notes
from geartrain.schema import ColumnBatch, Note, RowCodec, Schema, derive
from geartrain.testing import TestingSource, run_flow
from geartrain.wire.body import encode_rows

AIR = "air, two metres above ground"


def plain_kind() -> Any:
    class Reading(Record):
        sensor: str
        celsius: float
        humidity: float | None
        price: Annotated[Decimal, Digits(12, 2)]
        hourly: list[float]

    return Reading


def noted_kind() -> Any:
    class Reading(Record):
        sensor: Annotated[str, Description("its name in the building's plan")]
        celsius: Annotated[float, Unit("degC"), Description(AIR)]
        humidity: Annotated[float | None, Unit("%")]
        price: Annotated[Decimal, Digits(12, 2), Unit("EUR")]
        hourly: list[Annotated[float, Unit("degC")]]

    return Reading


def inside_kind() -> Any:
    class Reading(Record):
        sensor: str
        celsius: Annotated[float, Unit("degF")]
        humidity: Annotated[float, Unit("%")] | None
        price: Annotated[Annotated[Decimal, Unit("EUR")], Digits(12, 2)]
        hourly: Annotated[list[float], Unit("degC")]

    return Reading


KINDS: list[Callable[[], Any]] = [noted_kind, inside_kind]


class Hottest(Record):
    sensor: str
    window_start: datetime
    celsius: float
    total: Annotated[Decimal, Digits(12, 2)]


class NotedHottest(Record):
    sensor: str
    window_start: Annotated[datetime, Description("the first moment of its day")]
    celsius: Annotated[float, Unit("degC")]
    total: Annotated[Decimal, Digits(12, 2), Unit("EUR")]


def flow_of(kind: type[Any], hottest: type[Any] = Hottest) -> Flow:
    flow = Flow("heat")
    items = [
        (time, kind(sensor, celsius, None, Decimal("2.00"), [celsius]))
        for time, sensor, celsius in ((1, "a", 1.5), (2, "b", -0.0), (3, "a", 7.25), (15, "a", 2.0))
    ]
    readings: SourceStream[Any] = flow.source("readings", TestingSource(items=items), out=kind)
    readings.sink("kept", Table("kept"))
    days = readings.key_by("sensor").window(tumbling(timedelta(microseconds=10)))
    days.aggregate("hottest", out=hottest, celsius=agg.max("celsius"), total=agg.sum("price")).sink(
        "best", Table("best")
    )
    return flow


def revision(kind: type[Any]) -> Revision:
    return revision_of("flows:heat", make_plan(flow_of(kind).graph(), "auto"))


def encoded(kind: type[Any]) -> bytes:
    codec = RowCodec(kind)
    values = [kind("a", 1.5, None, Decimal("2.00"), [1.0]), kind("b", -0.0, 3.5, Decimal("-1.25"), [])]
    conformed, wrong = codec.conform(values)
    assert not wrong
    rows = ColumnBatch(codec.to_columns(conformed), [1, 2], ["s", "s"], [1, 2])
    return encode_rows(codec.schema, rows).body


@pytest.mark.parametrize("kind", KINDS)
def test_notes_make_no_other_type_and_no_other_byte(kind: Callable[[], Any]) -> None:
    plain, noted = derive(plain_kind()), derive(kind())
    assert noted.notes
    assert not plain.notes
    assert (noted, hash(noted), noted.schema_id) == (plain, hash(plain), plain.schema_id)
    assert [noted != plain, derive(Hottest) != plain] == [False, True]
    assert not any(one != other for one, other in zip(noted.fields, plain.fields, strict=True))
    assert noted.to_json() == plain.to_json() == plain.to_json(noted=True)
    assert encoded(kind()) == encoded(plain_kind())


def test_a_field_says_its_unit_and_what_it_is() -> None:
    schema = derive(noted_kind())
    assert schema.notes == {
        "sensor": Note("", "its name in the building's plan"),
        "celsius": Note("degC", AIR),
        "humidity": Note("%"),
        "price": Note("EUR"),
    }
    assert derive(inside_kind()).notes["humidity"] == Note("%")
    assert [one.note.text for one in schema.fields[:3]] == [
        "its name in the building's plan", f"[degC] {AIR}", "[%]"
    ]  # fmt: skip
    back = Schema.from_json(schema.to_json(noted=True))
    assert (back, back.notes) == (schema, schema.notes)
    assert Schema.from_json(schema.to_json()).notes == {}


@pytest.mark.parametrize(
    "note", [{"unit": "x" * 33}, {"unit": "\x1b[2J"}, {"description": "a\nb"}, {"other": "x"}, "x", 7]
)
def test_a_hostile_note_is_refused(note: object) -> None:
    whole = json.loads(derive(plain_kind()).to_json()) | {"notes": {"celsius": note}}
    with pytest.raises(SchemaError, match="cannot be read"):
        Schema.from_json(json.dumps(whole))


@pytest.mark.parametrize("text", ["", " m", "x" * 501, "two\nlines", "\x1b[31m"])
def test_a_note_that_cannot_be_shown_is_one_sentence(text: str) -> None:
    with pytest.raises(SchemaError, match=r"^Unit\(.*write 1 to 32 characters"):
        Unit(text)
    if text != " m":
        with pytest.raises(SchemaError, match=r"^Description\(.*write 1 to 500 characters"):
            Description(text)


def test_a_flow_runs_with_them_as_without() -> None:
    results = [run_flow(flow_of(kind())).tables for kind in (plain_kind, noted_kind, inside_kind)]
    shown = [{name: list(map(repr, rows)) for name, rows in one.items()} for one in results]
    assert len(shown[0]["best"]) == 3
    assert shown[0] == shown[1] == shown[2]
    best = run_flow(flow_of(noted_kind(), NotedHottest)).tables["best"]
    assert [repr(one).replace("NotedHottest", "Hottest") for one in best] == shown[0]["best"]


def test_they_travel_with_the_revision_and_change_nothing_else_in_it() -> None:
    plain, noted, other = revision(plain_kind()), revision(noted_kind()), revision(inside_kind())
    assert "notes" not in plain.to_json()
    assert msgspec.structs.replace(noted, notes={}).hash == plain.hash
    assert len({plain.hash, noted.hash, other.hash}) == 3
    assert Revision.from_json(noted.to_json()) == noted
    assert differences(plain, noted) == differences(noted, other) == []
    change = change_of(noted, other)
    assert {one.what for one in change.steps} == {"same"}
    assert (change.tables, change.refusals, change.crosses) == ((), (), False)
    assert ("kept", "celsius", Note("degC", AIR)) in list(table_notes(noted))
    assert ("kept", "celsius", Note("degF")) in list(table_notes(other))
