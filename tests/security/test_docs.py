"""The page on security: its commands run in their order, and its configuration is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import SourceError
from geartrain.sinks import MqttSink
from geartrain_cloud.platform.config import read_platform
from geartrain_devices.mqtt_topic import MqttTopic
from geartrain_edge.agent.config import read_config
from tests.waiting import WAIT_S

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def check_options(content: dict[str, Any]) -> None:
    """Options of a source or a sink are known, and it asks for the files that they name."""
    for options in content.get("sources", {}).values():
        source: MqttTopic[float] = MqttTopic().with_options(options, "page")
        with pytest.raises(SourceError, match=r"sources\.x\.ca: certs/sensors-ca\.pem cannot be read"):
            source.open("d1", "x", float)
    for options in content.get("steps", {}).values():
        sink = MqttSink("alerts", topic="alerts").with_options(options, "page")
        assert (sink.tls, sink.private_key) == (True, "certs/driver.key")


@pytest.mark.slow
def test_the_commands_run_in_order_and_the_agent_reads_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(os.environ) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    monkeypatch.chdir(tmp_path)
    kinds = []
    for kind, text in BLOCK.findall(PAGE):
        kinds.append(kind)
        if kind == "sh":
            script = ["sh", "-ec", text]
            done = subprocess.run(
                script,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
        elif "[fleet]" in text:
            (tmp_path / "platform.toml").write_text(text)
            assert read_platform(state=tmp_path).is_open
        elif "device = " not in text:
            check_options(tomllib.loads(text))
        else:
            (tmp_path / "agent.toml").write_text(text)
            broker = read_config("agent.toml").broker
            assert (broker.host, broker.port) == ("broker.example", 8883)
            assert broker.tls_context is not None
            assert broker.tls_context.check_hostname
    assert kinds == ["toml", "sh", "toml", "sh", "sh", "toml", "toml"]
    configuration = (tmp_path / "broker" / "mosquitto.conf").read_text()
    assert "crlfile /etc/mosquitto/fleet/crl.pem" in configuration
    assert (tmp_path / "page.token").stat().st_mode & 0o777 == 0o600
