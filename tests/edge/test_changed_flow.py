"""A spool of another version of a flow: the agent ends at once with the code that nobody starts it again for,
and a demo says so before it starts anything.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from geartrain.planning import make_plan
from geartrain_cloud.cli.demo import DemoOptions, begin, check_resumed
from geartrain_cloud.cli.demos import layout_of, load_demo
from geartrain_cloud.errors import StateError
from geartrain_cloud.supervisor.state_folder import StateFolder
from geartrain_cloud.supervisor.supervise import CONFIGURATION_ERROR
from geartrain_examples.control_loop.flow import flow as control_loop
from tests.edge.test_main import greeted, start, write_config


def test_an_agent_over_the_spool_of_another_version_ends_for_good(tmp_path: Path) -> None:
    config = greeted(write_config(tmp_path))
    config.write_text('cut = "edge"\n' + config.read_text())
    with start(config) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == CONFIGURATION_ERROR
    (sentence,) = [line for line in said.splitlines() if line.startswith("gear-agent:")]
    assert "was begun with another version of flow stocks or another cut (" in sentence
    assert sentence.endswith("or give this one a new state folder")


def test_a_state_folder_of_another_version_is_refused_before_anything_runs(tmp_path: Path) -> None:
    demo, state = load_demo("traffic"), StateFolder(tmp_path / "state", "")
    manifest = begin("traffic", demo, DemoOptions(), state)
    state.close()
    for layout in ("", manifest.layout):  # one that was begun before layouts were noted, and this very one
        same = msgspec.structs.replace(manifest, layout=layout)
        check_resumed("traffic", demo, same, DemoOptions(), tmp_path)
    changed = msgspec.structs.replace(manifest, layout="another")
    with pytest.raises(
        StateError, match=r"begun with another version of the flow traffic, .* another folder"
    ):
        check_resumed("traffic", demo, changed, DemoOptions(), tmp_path)
    finished = msgspec.structs.replace(changed, finished=True)
    check_resumed("traffic", demo, finished, DemoOptions(), tmp_path)


def test_a_layout_is_that_of_the_flow_as_it_is_cut() -> None:
    graph = control_loop.graph()
    assert layout_of(make_plan(graph, "edge")) == layout_of(make_plan(control_loop.graph(), "edge"))
    assert layout_of(make_plan(graph, "edge")) != layout_of(make_plan(graph, "cloud"))
