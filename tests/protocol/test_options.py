"""Options of sources, tasks and sinks: what may be set, from a file, a command line and in Python."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, Record, Table, Task
from geartrain.declarations.options import Options, Port, Text
from geartrain.errors import ConfigError, FlowError
from geartrain.operators.sink import sink_operator
from geartrain.operators.source import SourceOperator, on_device
from geartrain.operators.stateless import Stateless
from geartrain.processor import Input, Output, dataflow
from geartrain.runtime.opened import open_sources
from geartrain.sinks import Actuator, ConsoleSink, MqttSink, ParquetTable
from geartrain.testing import TestingSink, TestingSource, run_flow
from geartrain_client.terminal.settings import parse_set
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory, JsonLinesDirectory
from geartrain_devices.http_poll import HttpPoll
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.mqtt_topic import MqttTopic
from geartrain_devices.simulated import SimulatedSensor


class Reading(Record):
    room: str
    celsius: float


class Every(Options):
    """An option of each kind that there is."""

    flag: bool = False
    count: int = 0
    share: float = 0.0
    name: str = ""
    many: list[str] = field(default_factory=list)
    numbers: list[int] | None = None
    pair: tuple[str, ...] = ()
    paths: dict[str, str] = field(default_factory=dict)
    speed: str | float = "max"
    unit: typing.Literal["s", "ms"] = "s"
    port: Port = 1
    call: Callable[[int], int] | None = None


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("flag", "true", True),
        ("count", "-5", -5),
        ("share", "1e-3", 0.001),
        ("name", "5", "5"),
        ("many", "AAPL", ["AAPL"]),
        ("many", "AAPL, MSFT,", ["AAPL", "MSFT"]),
        ("many", '["A,B", "C"]', ["A,B", "C"]),
        ("many", "", []),
        ("numbers", "1,2", [1, 2]),
        ("numbers", "[1, 2]", [1, 2]),
        ("pair", "a,b", ("a", "b")),
        ("paths", '{"room": "$topic[1]"}', {"room": "$topic[1]"}),
        ("speed", "max", "max"),
        ("unit", "ms", "ms"),
    ],
)
def test_a_text_of_the_command_line_is_read_by_the_annotation(option: str, text: str, value: Any) -> None:
    settings = parse_set([f"step.{option}={text}"])["step"]
    assert getattr(Every().with_options(settings, "--set step"), option) == value


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("many", "AAPL", """step.many = 'AAPL': a list is meant: write ["AAPL"]"""),
        ("numbers", "1", """step.numbers = '1': a list is meant: write ["1"]"""),
        ("pair", "a", """step.pair = 'a': a list is meant: write ('a',), or ["a"] in a file"""),
        ("many", [1], "step.many = [1]: expected str, got int, at [0]"),
        ("count", "5", "step.count = '5': expected int, got str"),
        ("count", True, "step.count = True: expected int, got bool"),
        ("count", 1.0, "step.count = 1.0: expected int, got float"),
        ("flag", 1, "step.flag = 1: expected bool, got int"),
        ("share", "1", "step.share = '1': expected float, got str"),
        ("name", 1, "step.name = 1: expected str, got int"),
        ("paths", "x", "step.paths = 'x': expected table, got str"),
        ("paths", {"a": 1}, "step.paths = {'a': 1}: expected str, got int"),
        ("speed", [1], "step.speed = [1]: expected"),
        ("port", 0, "step.port = 0: expected int >= 1: write a whole number from 1 to 65,535"),
        ("flag", "on", "expected bool, got str: write true or false"),
        ("port", 65_536, "step.port = 65536: expected int <= 65535"),
        ("port", Text("x"), "step.port = 'x': expected int, got str"),
        ("unit", "h", "step.unit = 'h': invalid enum value 'h': write one of 's', 'ms'"),
        ("count", Text("many"), "step.count = 'many': expected int, got str"),
        ("numbers", Text("1,x"), "step.numbers = '1,x': expected int"),
        ("numbers", Text("[1,"), "step.numbers = '[1,': it is not JSON: write a list, such as ["),
        ("call", Text("print"), "step.call = 'print': expected Callable, got str"),
        ("nothing", 1, "there is no option 'nothing'; options of Every: flag, count, share"),
    ],
)
def test_a_value_of_another_type_is_one_sentence(option: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Every().with_options({option: value}, "agent.toml: [steps] step")
    assert str(error.value).startswith("agent.toml: [steps] step")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


class Thermometer(SimulatedSensor[Reading]):
    pass


class Alarm(Task[Reading, str]):
    above: float = 30.0
    rooms: list[str] = field(default_factory=list)
    state: ClassVar[Any] = None

    def on_next(self, value: Reading, ctx: Context[str, None]) -> None:
        ctx.emit(value.room)


@dataclass(frozen=True)
class Bell(Actuator[str]):
    pin: int = 4


SOURCES = [
    *(CsvReplay[Reading], JsonLines[Reading], CsvDirectory[Reading], JsonLinesDirectory[Reading]),
    *(HttpPoll[Reading], MqttTopic[Reading], Thermometer),
]
SINKS = [Table, ParquetTable, ConsoleSink, MqttSink, Bell]


def _options(kind: Any, *, but: tuple[str, ...] = ()) -> list[str]:
    owner = typing.get_origin(kind) or kind
    return [option.name for option in dataclasses.fields(owner) if option.name not in but]


def test_every_option_of_every_source_task_and_sink_is_refused_where_its_type_is_another() -> None:
    wrong: Any = object()
    refused = (
        r"(<object .*: expected .*, got object|\(not shown\): write secret:NAME)"  # secrets are not shown
    )
    made: list[tuple[Any, str, Callable[[Any], object]]] = []
    for kind in SOURCES:
        made += [(kind, option, SourceOperator) for option in _options(kind)]
    made += [(Alarm, option, Stateless) for option in _options(Alarm)]
    for kind, option, operator in made:
        needed = {"time_column": "at"} if "time_column" in _options(kind) else {}
        with pytest.raises(FlowError, match=rf": {option} = {refused}"):
            operator(kind(**{**needed, option: wrong}))
        with pytest.raises(ConfigError, match=rf"s\.{option} = {refused}"):
            kind(**needed).with_options({option: wrong}, "s")
    for sink in SINKS:
        for option in _options(sink):
            with pytest.raises(FlowError, match=rf": {option} = <object .*: expected .*, got object"):
                sink(**{"name": "t", option: wrong})
        for option in _options(sink, but=("name", "key")):
            with pytest.raises(ConfigError, match=rf"s\.{option} = <object .*: expected .*, got object"):
                sink("t").with_options({option: wrong}, "s")
    assert len(made) > 50


def test_a_list_written_as_a_text_in_python_is_refused_where_the_flow_is_written() -> None:
    wrong: Any = "AAPL"
    source: CsvReplay[Reading] = CsvReplay(time_column="at", select=wrong)
    said = r"""CsvReplay: select = 'AAPL': a list is meant: write \["AAPL"\]"""
    with pytest.raises(FlowError, match=said):
        Flow("f").source("readings", source, out=Reading)
    with pytest.raises(FlowError, match=r"Table: key = 'AAPL': a list is meant: write \('AAPL',\)"):
        Table("t", key=wrong)


def test_a_name_and_a_key_of_a_sink_are_set_where_the_flow_is_written() -> None:
    with pytest.raises(ConfigError, match="there is no option 'key'; options of ConsoleSink: rows_max"):
        ConsoleSink("t").with_options({"key": ["a"]}, "s")
    operator: Any = sink_operator(ConsoleSink("t")).with_options({"rows_max": Text("5")}, "s")
    assert operator.table == ConsoleSink("t", rows_max=5)


def test_an_int_is_taken_where_a_float_is_meant_and_a_default_as_it_is() -> None:
    assert Alarm(above=5).with_options({"above": 7}, "s").above == 7.0

    class Sloppy(Task[Reading, str]):
        limit: int = None  # type: ignore[assignment]

    Stateless(Sloppy())


def test_annotations_that_cannot_be_read_are_said_when_an_option_is_set() -> None:
    class Local(Record):
        n: int

    class Odd(Task[Reading, str]):
        local: Local | None = None

    Stateless(Odd())
    with pytest.raises(ConfigError, match="s: the annotations of Odd cannot be read"):
        Odd().with_options({"local": 1}, "s")


def test_a_source_that_is_not_enabled_opens_no_split() -> None:
    flow = Flow("half")
    for name in ("a", "b"):
        source: TestingSource[int] = TestingSource(items=[(1, 1)])
        flow.source(name, source, out=int).sink(f"{name}_out", TestingSink(f"{name}_out"))
    graph = flow.graph()
    assert [one.step for one in open_sources(graph, "d")] == ["a", "b"]
    without = graph.with_options({"a": {"enabled": Text("false")}})
    assert [one.step for one in open_sources(without, "d")] == ["b"]
    back = without.with_options({"a": {"enabled": True}})
    assert [one.step for one in open_sources(back, "d")] == ["a", "b"]


def test_a_source_is_for_the_devices_that_its_selector_matches_and_a_run_without_a_fleet_reads_all() -> None:
    flow, sink = Flow("some"), TestingSink("out")
    flow.source("a", TestingSource(items=[(1, 1)]), out=int, devices=" kind = truck ").sink("out", sink)
    graph = flow.graph()
    assert run_flow(graph).tables["out"] == [(1, 1)]
    for labels, splits in (({"kind": "truck"}, ["a"]), ({"kind": "tank"}, []), ({}, [])):
        assert [one.step for one in open_sources(on_device(graph, "d", labels), "d")] == splits
    with pytest.raises(FlowError, match=r"flow some, source 'b': devices='a,b': .*no device has two names"):
        flow.source("b", TestingSource(items=[(1, 1)]), out=int, devices="a,b")
    for devices in ("kind=truck", "all"):
        source = Input("a", TestingSource(items=[(1, 1)]), out=int, devices=devices)
        given = dataflow("low", source >> Output("o", sink))
        (step,) = given.sources()
        assert isinstance(step.operator, SourceOperator)
        assert step.operator.devices == ("" if devices == "all" else devices)


def test_a_source_with_an_option_of_that_name_keeps_it() -> None:
    class Switch(TestingSource[int]):
        enabled: str = "no"

    flow = Flow("own")
    switch = Switch(items=[(1, 1)])
    flow.source("a", switch, out=int).sink("out", TestingSink("out"))
    step = flow.graph().with_options({"a": {"enabled": "yes"}})["a"].operator
    assert isinstance(step, SourceOperator)
    assert (step.enabled, step.source.enabled) == (True, "yes")  # type: ignore[attr-defined]
    with pytest.raises(FlowError, match="give that option of Switch another name"):
        flow.source("b", switch, out=int, devices="kind=truck")
