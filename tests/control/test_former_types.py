"""What control keeps of the types that the records of a channel had, and what it tells ingest of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from geartrain import Flow, Record, Table
from geartrain.schema import Schema
from geartrain.testing import TestingSource
from geartrain_cloud.control.checking import Answer, Question, check
from geartrain_cloud.control.hosting import ToHost, knows_next, write_hosted
from geartrain_cloud.control.roster import RosterKeeper, Told
from geartrain_cloud.control_store.model import Outline, Submission
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.hosting.wanted import Wanted
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import read_report

Functions = Mapping[Any, Callable[[Any], Any]]


class Live(TestingSource[Any]):
    """One that never ends."""

    bounded = False


class Plain(Record):
    sensor: str
    level: int = 0


class Measured(Record):
    sensor: str
    celsius: float = 0.0
    upgrade: ClassVar[Functions] = {Plain: lambda one: Measured(one.sensor, one.level / 10)}


class Reading(Record):
    sensor: str
    celsius: float = 0.0
    unit: str = "C"
    upgrade: ClassVar[Functions] = {
        Plain: lambda one: Measured(one.sensor, one.level / 10),
        Measured: lambda one: Reading(one.sensor, one.celsius),
    }


class Forgetful(Record):
    sensor: str
    celsius: float = 0.0
    unit: str = "C"
    upgrade: ClassVar[Functions] = {Measured: lambda one: Forgetful(one.sensor, one.celsius)}


class Alone(Record):
    """It takes no other type."""

    sensor: str
    kelvin: float = 0.0


class AloneNow(Record):
    sensor: str
    kelvin: float = 0.0
    unit: str = "K"
    upgrade: ClassVar[Functions] = {Alone: lambda one: AloneNow(one.sensor, one.kelvin)}


class Merciful(Record):
    """It takes what was given up, too."""

    sensor: str
    kelvin: float = 0.0
    unit: str = "K"
    where: str = ""
    upgrade: ClassVar[Functions] = {
        Plain: lambda one: Merciful(one.sensor, one.level / 10 + 273),
        Alone: lambda one: Merciful(one.sensor, one.kelvin),
        AloneNow: lambda one: Merciful(one.sensor, one.kelvin),
    }


def flow_with(kind: Any, *, attached: bool = False) -> Flow:
    flow = Flow("heat")
    readings: Any = flow.source("readings", Live(items=[]), out=kind)
    readings.filter(bool, name="some").sink("out", Table("readings"))
    if attached:
        readings.filter(bool, name="again").sink("out_again", Table("again"))
    return flow


flow = flow_with(Plain)


def asked(
    kind: Any, running: Outline | None = None, *, gives_up: bool = False, reads_past: bool = False
) -> Answer:
    """reads_past: the flow has new steps as well, which are to read the log of before."""
    globals()["flow"] = flow_with(kind, attached=reads_past)  # which the question names
    sent = () if running is None else tuple(running.channels)
    document = "" if running is None else running.document
    base = "" if running is None else running.base
    question = Question(f"{__name__}:flow", "cloud", {}, running=document, sent=sent, base=base)
    return check(replace(question, gives_up=gives_up, reads_past=reads_past))


def outlined(answer: Answer) -> Outline:
    assert answer.outline is not None
    return answer.outline


def former_of(outline: Outline) -> list[str]:
    (channel,) = [one for one in outline.channels if one.id == "readings"]
    return [Schema.from_json(text).name for text in channel.former]


def test_a_channel_keeps_the_types_that_its_records_had() -> None:
    first = outlined(asked(Plain))
    second = asked(Measured, first)
    third = asked(Reading, outlined(second))
    for answer in (second, third):
        assert answer.change is not None
        assert (answer.change.refusals, answer.change.crosses) == ((), True)
    assert second.change is not None
    assert second.change.upgrades == {"readings": "its records had a field level, now have none"}
    assert former_of(first) == []
    assert former_of(outlined(second)) == ["Plain"]
    assert former_of(outlined(third)) == ["Plain", "Measured"]
    again = asked(Reading, outlined(third))
    assert former_of(outlined(again)) == ["Plain", "Measured"]
    assert again.is_same


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Forgetful, "the log has rows of channel readings of a type Plain that a former revision had"),
        (Plain, "devices would send other records under a known name"),
    ],
)
def test_a_type_that_the_new_one_does_not_name_is_refused_in_one_sentence(kind: Any, why: str) -> None:
    second = outlined(asked(Measured, outlined(asked(Plain))))
    change = asked(kind, second).change
    assert change is not None
    (refused,) = change.refusals
    assert refused.startswith(why)
    assert refused.endswith("--dead-letter-old")


def given_up(outline: Outline) -> list[str]:
    """The names of the former types of the readings that are given up."""
    (channel,) = [one for one in outline.channels if one.id == "readings"]
    known = {Schema.from_json(text).layout: Schema.from_json(text).name for text in channel.former}
    return [known[layout] for layout in channel.given_up]


def test_a_former_type_that_is_given_up_stays_so_until_an_upgrade_names_it() -> None:
    first = outlined(asked(Plain))
    second = asked(Alone, first, gives_up=True)
    assert second.change is not None
    assert (second.change.refusals, second.change.crosses) == ((), True)
    assert second.change.upgrades == {}
    assert second.change.letters.keys() == {"readings"}
    assert given_up(outlined(second)) == ["Plain"]
    third = asked(AloneNow, outlined(second))
    assert third.change is not None
    assert (third.change.refusals, third.change.letters) == ((), {})
    assert (former_of(outlined(third)), given_up(outlined(third))) == (["Plain", "Alone"], ["Plain"])
    taken = asked(Merciful, outlined(third))
    assert taken.change is not None
    assert (taken.change.refusals, given_up(outlined(taken))) == ((), [])


def test_a_type_that_only_a_former_revision_had_is_named_where_it_is_given_up() -> None:
    second = outlined(asked(Measured, outlined(asked(Plain))))
    third = asked(Forgetful, second, gives_up=True)
    assert third.change is not None
    assert third.change.letters == {"readings": "its records were of type Plain in a former revision"}
    assert given_up(outlined(third)) == ["Plain"]
    again = asked(Forgetful, outlined(third), gives_up=True)
    assert again.change is not None
    assert again.change.letters == {}


def test_new_steps_read_no_past_in_which_rows_are_given_up() -> None:
    first = outlined(asked(Plain))
    at_once = asked(Alone, first, gives_up=True, reads_past=True)
    behind = asked(AloneNow, outlined(asked(Alone, first, gives_up=True)), reads_past=True)
    for answer in (at_once, behind):
        assert answer.past is not None
        assert answer.past.refused == (
            "the log may have rows of channel readings of the former type Plain, which become dead letters: "
            "have the upgrade of the new type take them, or begin from now"
        )
    taken = asked(Merciful, outlined(asked(Alone, first, gives_up=True)), reads_past=True)
    assert taken.past is not None
    assert (taken.past.refused, taken.past.channels) == ("", {"readings": "readings"})


def test_the_host_is_told_of_what_is_given_up_once(tmp_path: Path) -> None:
    """What it was told compares equal to what it is to be told, so that control goes on."""
    config = PlatformConfig(tmp_path)
    store = ControlStore(config.places.control, lambda: 10**15)
    second = outlined(asked(Alone, outlined(asked(Plain)), gives_up=True))
    store.apps.submit(Submission("heat", f"{__name__}:flow", "auto", "all"), second)
    config.places.spark_wanted.parent.mkdir(parents=True, exist_ok=True)
    told = ToHost(store.apps.newest("heat"))
    write_hosted(config.places, [told])
    (flow,) = msgspec.convert(read_report(config.places.spark_wanted), Wanted).flows.values()
    assert flow.given_up.keys() == {"readings"}
    assert knows_next(config.places, told, 1)
    store.close()


def test_what_a_channel_takes_is_upgraded_whatever_is_given_up() -> None:
    answer = asked(Measured, outlined(asked(Plain)), gives_up=True)
    assert answer.change is not None
    assert (answer.change.refusals, answer.change.letters) == ((), {})
    assert answer.change.upgrades.keys() == {"readings"}
    assert given_up(outlined(answer)) == []


def test_ingest_is_told_of_them(tmp_path: Path) -> None:
    config = PlatformConfig(tmp_path)
    store = ControlStore(config.places.control, lambda: 10**15)
    second = outlined(asked(Measured, outlined(asked(Plain))))
    store.apps.submit(Submission("heat", f"{__name__}:flow", "auto", "all"), second)
    RosterKeeper(config.places, config.fleet).write([Told(store.apps.newest("heat"), {})])
    flow = FollowedFlow.of(changed(RosterReader(config.places.log).after())["heat.1"])
    store.close()
    (former,) = flow.former["readings"].values()
    assert former.name == "Plain"
    assert flow.takes("readings", former.schema_id)
