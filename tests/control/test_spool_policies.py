"""A source that cannot wait and a device that has it wait: refused at submit, by the key to change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.control.codec import encode_reported
from geartrain.control.states import CAN, WAITS, Reported
from geartrain_cloud.control.checking import Question, check
from geartrain_cloud.control.spool_policies import SpoolPolicies
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Options, Outline, SourceOutline
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import LocalSection

OUTLINE = Outline(
    "heat", [], [SourceOutline("files", True), SourceOutline("topic", False, waits=False)], "ab" * 32
)
BLOCK = {"policy": "block"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    store = ControlStore(tmp_path / "control.sqlite", lambda: 1)
    for name in ("here", "far", "silent"):
        store.devices.add(name, {"kind": name}, local=name == "here")
    said = Reported("far", b"12345678", 1, 1, can=(*CAN, WAITS), program="0.3.0")
    store.reports.heard("far", encode_reported(said), 0, [])
    yield store
    store.close()


def ask(
    store: ControlStore,
    device: str,
    local: dict[str, Any] | None = None,
    outline: Outline = OUTLINE,
    options: Options | None = None,
) -> None:
    policies = SpoolPolicies(store, LocalSection(**(local or {})))
    policies.check("heat", outline, [store.devices.get(device)], options or {}, {})


@pytest.mark.parametrize(
    ("device", "local", "key"),
    [
        ("here", {"spool": BLOCK}, "local.spool.policy of platform.toml"),
        ("here", {"apps": {"heat": {"spool": BLOCK}}}, "local.apps.heat.spool.policy of platform.toml"),
        ("far", {}, "spool.policy of its file"),
    ],
)
def test_the_key_is_named_by_which_a_source_would_wait_that_cannot(
    store: ControlStore, device: str, local: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConflictError) as refused:
        ask(store, device, local)
    assert str(refused.value) == (
        f"source topic cannot wait while the spool of device {device} is full, as 'block' asks: leave {key} "
        "out, or choose drop_oldest, drop_newest or downsample"
    )


def test_who_does_not_have_that_source_or_another_policy_is_let_be(store: ControlStore) -> None:
    ask(store, "silent", {"spool": BLOCK})
    ask(store, "here", {"spool": {"policy": "drop_oldest"}})
    ask(store, "here", {"spool": BLOCK, "apps": {"heat": {"spool": {"policy": "drop_newest"}}}})
    ask(store, "here", {"apps": {"cold": {"spool": BLOCK}}})
    ask(store, "here", {"spool": BLOCK}, options={"topic": {"enabled": False}})
    elsewhere = SourceOutline("topic", False, devices="kind=far", waits=False)
    outline = Outline("heat", [], [elsewhere], "ab" * 32)
    ask(store, "here", {"spool": BLOCK}, outline)
    with pytest.raises(ConflictError, match="device far is full"):
        ask(store, "far", {"spool": BLOCK}, outline)


def test_an_outline_says_which_sources_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heard.py").write_text(
        "from geartrain import Flow, Table\n"
        "from geartrain_devices.mqtt_topic import MqttTopic\n"
        "from geartrain_examples.stocks.drawdown import Quote\n"
        'flow = Flow("heard")\n'
        'flow.source("topic", MqttTopic(topic="a"), out=Quote).sink("out", Table("quotes"))\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    outline = check(Question("heard:flow", "auto", {})).outline
    assert outline is not None
    assert [(source.id, source.waits) for source in outline.sources] == [("topic", False)]
