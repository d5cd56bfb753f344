"""The traffic demo without processes: dealt to devices as its launcher deals it, cut anywhere, restarted."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from geartrain.declarations.sink import Table
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import Graph
from geartrain.operators.source import SourceOperator
from geartrain.planning import Cut
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import json_bytes, rows
from geartrain_examples.demo import Setup
from geartrain_examples.traffic.demo import DEMO, SAMPLE_FILES, TrafficOptions
from tests.demo.traffic_reference import TABLES, expected, read
from tests.devices.prices import replay
from tests.reference.rows import Answer
from tests.reference.two_tiers import World, run_cut

FLOW = DEMO.flow(TrafficOptions())
SAMPLE_INPUTS = SAMPLE_FILES
NOWHERE = Path("/nowhere")
"""A state folder that must not be written to."""


def prepared(inputs: Mapping[str, Any], devices: int = 1, **given: Any) -> tuple[Graph, Setup]:
    """The flow with the options of its steps, and what its launcher is given."""
    options = TrafficOptions(**inputs, **given)
    setup = DEMO.set_up(NOWHERE, options, devices)
    return load_flow(FLOW).graph().with_options(setup.steps), setup


def whole(inputs: Mapping[str, Path], **given: Any) -> Graph:
    """The flow on one device that has everything."""
    graph, setup = prepared(inputs, **given)
    return graph.with_options(setup.whole)


def dealt_world(inputs: Mapping[str, Path], devices: int, **given: Any) -> tuple[Graph, World]:
    """What so many devices read, by their own sources."""
    graph, setup = prepared(inputs, devices, **given)
    splits = {device: _read(graph.with_options(sources), device) for device, sources in setup.devices.items()}
    return graph, World(splits, {step.id: 0 for step in graph.sources()})


def _read(graph: Graph, device: str) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for step in graph.sources():
        assert isinstance(step.operator, SourceOperator)
        for split in step.operator.source.open(device, step.id, step.out):
            given = replay(split, limit=1_000_000)
            items = list[Any](zip(given.times, given.values, strict=True))
            for reject in sorted(given.rejects, key=lambda one: one.number):
                items.insert(reject.number, reject)
            found.setdefault(step.id, {})[split.name] = items
    return found


def cut_tables(graph: Graph, cut: Cut, world: World, seed: int, folder: Path) -> dict[str, bytes]:
    """The files of one run of the two tiers, with all that chance does to them."""
    return files_of(graph, run_cut(graph, cut, world, random.Random(seed)), folder)


def files_of(graph: Graph, answer: Answer, folder: Path) -> dict[str, bytes]:
    """An answer, written to tables and read as the output contract has it."""
    path = folder / "tables.sqlite"
    path.unlink(missing_ok=True)
    tables = SqliteTables(path)
    batches: dict[str, list[ColumnBatch]] = {}
    for step in graph.sinks():
        codec = RowCodec(graph[step.inputs[0].step].out)
        sink: Any = step.operator
        tables.declare(step.id, Table(sink.table.name, sink.table.key), codec.schema)
        found = answer.sinks[step.id]
        columns = codec.to_columns([row.value for row in found])
        batches[step.id] = [
            ColumnBatch(
                columns,
                [row.time for row in found],
                [row.name for row in found],
                [row.number for row in found],
                [row.path for row in found],
            )
        ]
    tables.write("run", 0, {}, batches)
    tables.close()
    return {name: json_bytes(rows(path, name)) for name in TABLES}


def expected_of(inputs: Mapping[str, Path], limit_kmh: str = "60") -> dict[str, bytes]:
    """What the reference finds in these files."""
    places = None
    if "checkpoints" in inputs:
        frame = pd.read_csv(inputs["checkpoints"], dtype=str)
        places = {one.detector: (one.x_m, one.y_m) for one in frame.itertuples()}
    loops = read(inputs["loops"], "begin_s") if "loops" in inputs else None
    return expected(read(inputs["passes"], "time_s"), loops, places, limit_kmh=limit_kmh)
