"""The driver's file: its paths, those of sinks too, are relative to its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import ConfigError
from geartrain.operators.sink import SinkOperator
from geartrain_cloud.spark.config import read_config

FLOW = """
from geartrain import Flow
from geartrain.sinks import MqttSink, ParquetTable
from geartrain.testing import TestingSource

flow = Flow("paths")
numbers = flow.source("numbers", TestingSource(items=[(1, 1)]), out=int)
numbers.sink("files", ParquetTable("files"))
numbers.sink("topic", MqttSink("topic", topic="t"))
"""


def test_paths_of_a_file_are_relative_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flow_with_paths.py").write_text(FLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "driver.toml").write_text(
        'flow = "flow_with_paths:flow"\nlog = "log"\nstate = "s"\ntables = "/t/tables.sqlite"\n'
        '[steps.files]\nfolder = "lake"\n[steps.topic]\nca = "ca.pem"\ntopic = "t/u"\n'
    )
    found = read_config(folder / "driver.toml")
    assert (found.log, found.state, found.tables) == (folder / "log", folder / "s", Path("/t/tables.sqlite"))
    graph = found.plan().graph

    def sink(step: str) -> Any:
        operator = graph[step].operator
        assert isinstance(operator, SinkOperator)
        return operator.table

    assert sink("files").folder == str(folder / "lake")
    assert (sink("topic").ca, sink("topic").topic) == (str(folder / "ca.pem"), "t/u")


def test_an_instance_is_the_name_under_which_its_flow_runs(tmp_path: Path) -> None:
    file = tmp_path / "driver.toml"
    text = 'flow = "tests.spark.flows:flow"\nlog = "log"\nstate = "s"\ntables = "t.sqlite"\n'
    file.write_text(text)
    assert read_config(file).plan().graph.name == "sums"
    file.write_text(text + 'instance = "sums.7"\n')
    assert read_config(file).plan().graph.name == "sums.7"
    file.write_text(text + 'instance = "sums"\n')
    with pytest.raises(ConfigError, match=r"driver\.toml: instance: instance 'sums': write the app's name"):
        read_config(file).plan()
