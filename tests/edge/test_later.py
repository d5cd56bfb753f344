"""A module that is loaded later is whole for whoever asks, and costs nothing before."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import WAIT_S

ASK = """
import sys, threading
from geartrain_edge.lazy_import import load_later
load_later("xml.dom.minidom")
load_later("xml.dom.minidom")  # once more changes nothing
load_later("xml.dom.no_such_module")
import xml.dom.minidom
assert "xml.dom.expatbuilder" not in sys.modules and "xml.dom.xmlbuilder" not in sys.modules
kept, found = xml.dom.minidom, []
threads = [threading.Thread(target=lambda: found.append(kept.parseString("<a/>"))) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert [one.documentElement.tagName for one in found] == ["a"] * 8
from xml.dom.minidom import Document
assert Document is kept.Document is sys.modules["xml.dom.minidom"].Document is type(found[0])
assert xml.dom.minidom is sys.modules["xml.dom.minidom"] is not kept
assert "xml.dom.no_such_module" not in sys.modules
"""

AGENT = """
import sys
from geartrain_edge.agent.process import prepare
prepare()
import geartrain_edge.agent.main
assert "http.client" not in sys.modules
import geartrain.adapters.mqtt, geartrain.wire.codec
assert "google.protobuf.text_format" not in sys.modules and "http.client" not in sys.modules
from google.protobuf.text_format import MessageToString
from google.protobuf.internal.python_message import GeneratedProtocolMessageType
assert MessageToString(geartrain.wire.codec.pb.Watermark(time=3)).strip() == "time: 3"
from geartrain_devices.http_poll import HttpPoll, OpenerDirector
assert OpenerDirector.__module__ == "urllib.request" and "http.client" in sys.modules
"""


def in_python(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_what_is_loaded_later_is_whole_in_every_thread() -> None:
    done = in_python(ASK)
    assert done.returncode == 0, done.stderr


def test_an_agent_leaves_out_what_it_does_not_use_and_a_source_finds_it() -> None:
    done = in_python(AGENT)
    assert done.returncode == 0, done.stderr
