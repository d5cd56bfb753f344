"""Records of former types as records of the present: by table, what a class may say, what a change does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from geartrain import Flow, Record, Table
from geartrain.errors import FlowError, SchemaError
from geartrain.planning import make_plan
from geartrain.revision import Change, Revision, change_of, revision_of
from geartrain.schema import RowCodec, derive
from geartrain.schema.upgrading import GivenUp, Upgrading
from geartrain.testing import TestingSource

Functions = Mapping[Any, Callable[[Any], Any]]


class Plain(Record):
    sensor: str
    value: int


class Measured(Record):
    sensor: str
    celsius: float


class Reading(Record):
    sensor: str
    celsius: float
    unit: str
    upgrade: ClassVar[Functions] = {
        Plain: lambda one: Measured(one.sensor, 100 / one.value),
        Measured: lambda one: Reading(one.sensor, one.celsius, "C"),
    }


class Marked(Reading):
    mark: int = 0


Flagged = msgspec.defstruct("Flagged", [("upgrade", bool)], bases=(Record,), frozen=True)


class Wrong(Record):
    sensor: str
    upgrade: ClassVar[Functions] = {Plain: lambda one: Wrong(one.value)}


def test_a_record_goes_from_type_to_type_until_it_is_of_the_last() -> None:
    reading = Upgrading(Reading)
    assert reading.upgraded(Plain("a", 8)) == Reading("a", 12.5, "C")
    assert reading.upgraded(Measured("a", 3)) == Reading("a", 3.0, "C")  # in its normal form
    with pytest.raises(ZeroDivisionError):
        reading.upgraded(Plain("a", 0))
    with pytest.raises(SchemaError, match="field sensor must be str, got 5"):
        Upgrading(Wrong).upgraded(Plain("a", 5))


def test_a_former_type_is_known_by_its_fields_and_not_by_its_name() -> None:
    reading, former = Upgrading(Reading), msgspec.structs.replace(derive(Plain), name="Reading")
    codec = reading.codec_of(former)
    assert isinstance(codec, RowCodec)
    assert codec.from_columns([["a"], [8]]) == [Plain("a", 8)]
    renamed = msgspec.structs.replace(derive(Reading), name="Other")
    assert reading.codec_of(renamed) is reading.codec
    assert reading.codec_of(derive(Flagged)) is None


def test_a_type_that_was_given_up_is_known_by_name_unless_a_function_takes_it() -> None:
    lost = derive(Flagged)
    reading = Upgrading(Reading, [lost.layout, derive(Plain).layout])
    found = reading.codec_of(lost)
    assert isinstance(found, GivenUp)
    assert found.why == (
        "records of its type were given up by an update with --dead-letter-old: Flagged came from a device "
        "that had not gone over"
    )
    assert isinstance(reading.codec_of(derive(Plain)), RowCodec)


def test_a_class_says_it_of_its_own_records_alone() -> None:
    assert Upgrading(Marked).codec_of(derive(Plain)) is None
    assert Upgrading(Flagged).codec_of(derive(Plain)) is None


def declared(upgrade: Any) -> type:
    return msgspec.defstruct(
        "Later",
        [("sensor", str)],
        bases=(Record,),
        namespace={"upgrade": upgrade, "__annotations__": {"upgrade": ClassVar[Any]}},
        frozen=True,
    )


@pytest.mark.parametrize(
    ("upgrade", "why"),
    [
        ([Plain], "Later.upgrade is to be a dict of former types and functions"),
        ({int: str}, "Later.upgrade names <class 'int'>, which is no Record"),
        ({Plain: Plain("a", 1)}, r"Later.upgrade\[Plain\] is no function of such a record"),
        (
            {msgspec.defstruct("Same", [("sensor", str)], bases=(Record,), frozen=True): str},
            "Later.upgrade: Same has the fields of Later: leave it out",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(upgrade: Any, why: str) -> None:
    flow = Flow("cold")
    with pytest.raises(FlowError, match=f"flow cold, step 'readings': {why}"):
        flow.source("readings", TestingSource(items=[]), out=declared(upgrade))


def document(kind: Any) -> Revision:
    flow = Flow("cold")
    readings: Any = flow.source("readings", TestingSource(items=[]), out=kind)
    readings.filter(bool, name="some").sink("out", Table("readings"))
    return revision_of("cold:flow", make_plan(flow.graph(), "cloud"))


def changed(old: Any, new: Any) -> Change:
    return change_of(document(old), document(new), evolution=lambda *_: ())


def test_a_channel_keeps_its_name_where_the_new_type_names_the_former() -> None:
    found = changed(Plain, Reading)
    assert (found.refusals, found.crosses) == ((), True)
    assert found.upgrades == {"readings": "its records had a field value, now have none"}
    (refused,) = changed(Reading, Plain).refusals
    assert "now have none); " not in refused
    assert "name the former type in the new one's upgrade, or give the step another id" in refused
    assert changed(Reading, Reading).upgrades == {}


def test_a_document_without_former_types_has_the_text_that_it_always_had() -> None:
    assert "upgrades" not in document(Plain).to_json()
    assert Revision.from_json(document(Reading).to_json()) == document(Reading)
