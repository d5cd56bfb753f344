"""The roster as a store: what was put is read back once, by its serial, and what cannot be is refused."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.errors import ConfigError, LedgerError
from geartrain_cloud.log import roster as roster_module
from geartrain_cloud.log.roster import (
    ROSTER_FILE,
    RosterChannel,
    RosterDocument,
    RosterReader,
    RosterWriter,
)

ONE = RosterDocument(
    {"readings": RosterChannel(("readings",), "00ff00ff00ff00ff")},
    ("readings", "events"),
    {"truck-1": ("readings", "events"), "truck-2": ("readings",)},
    bounded=False,
    partitioned_by={"readings": "sensor"},
)


def test_what_was_put_is_read_back_once(tmp_path: Path) -> None:
    reader, writer = RosterReader(tmp_path / "log"), RosterWriter(tmp_path / "log")
    assert (reader.serial(), reader.after()) == (0, [])
    assert writer.put("traffic.1", ONE) == 1
    assert writer.put("traffic.1", ONE) == 1  # nothing has changed
    assert writer.put("heat.1", replace(ONE, bounded=True)) == 2
    assert [(row.instance, row.serial) for row in reader.after()] == [("traffic.1", 1), ("heat.1", 2)]
    assert reader.after()[0].document == ONE
    assert writer.put_device("traffic.1", "truck-3") == 3
    assert writer.put_device("traffic.1", "truck-2", ["events"]) == 4
    assert writer.remove_device("traffic.1", "truck-1") == 5
    assert writer.remove_device("traffic.1", "truck-1") == 5
    (row,) = reader.after(2)
    assert row.document is not None
    assert row.document.devices == {"truck-2": ("events",), "truck-3": ("readings", "events")}
    assert reader.serial() == row.serial == 5
    assert reader.after(5) == []
    mode = stat.S_IMODE((tmp_path / "log" / ROSTER_FILE).stat().st_mode)
    assert mode == 0o600


def test_an_instance_that_has_ended_never_lives_again(tmp_path: Path) -> None:
    writer = RosterWriter(tmp_path)
    writer.put("traffic.1", ONE)
    assert writer.end("traffic.1") == 2
    assert writer.end("traffic.1") == 2
    with pytest.raises(ConfigError, match="it has ended: take the next number"):
        writer.put("traffic.1", ONE)
    (row,) = RosterReader(tmp_path).after()
    assert row.document == replace(ONE, devices={}, ended=True)


@pytest.mark.parametrize(
    ("instance", "document", "said"),
    [
        ("a/b", ONE, "use a name of"),
        ("..", ONE, "dots only"),
        ("a.1", replace(ONE, devices={"d/+": ("readings",)}), "use a name of"),
        ("a.1", replace(ONE, devices={"d": ("other",)}), "'other' is not among readings, events"),
        ("a.1", replace(ONE, sources=("readings", "a b")), "the id of no step"),
        ("a.1", replace(ONE, channels={"x": RosterChannel(("y",))}, partitioned_by={}), "'y' is not among"),
        ("a.1", replace(ONE, channels={"_late": RosterChannel(())}, partitioned_by={}), "one of the system"),
        ("a.1", replace(ONE, partitioned_by={"x": "y"}), "'x' is not among readings"),
    ],
)
def test_a_document_that_cannot_be_is_refused(
    instance: str, document: RosterDocument, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        RosterWriter(tmp_path).put(instance, document)
    assert "\n" not in str(caught.value)
    assert RosterReader(tmp_path).after() == []


def test_an_instance_that_is_not_there_is_said(tmp_path: Path) -> None:
    writer = RosterWriter(tmp_path)
    for change in (
        writer.end,
        lambda name: writer.put_device(name, "d"),
        lambda name: writer.remove_device(name, "d"),
    ):
        with pytest.raises(ConfigError, match="there is no such instance"):
            change("traffic.1")


def test_the_roster_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RosterWriter(tmp_path)
    monkeypatch.setattr(roster_module, "DEVICES_MAX", 2)
    monkeypatch.setattr(roster_module, "INSTANCES_MAX", 1)
    writer.put("a.1", ONE)
    with pytest.raises(ConfigError, match="more than 2"):
        writer.put_device("a.1", "truck-3")
    with pytest.raises(ConfigError, match="1 instances already"):
        writer.put("a.2", ONE)
    monkeypatch.setattr(roster_module, "BYTES_MAX", 10)
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        writer.remove_device("a.1", "truck-1")


def test_a_damaged_row_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    writer = RosterWriter(tmp_path)
    writer.put("a.1", ONE)
    writer.put("b.1", ONE)
    with closing(sqlite3.connect(tmp_path / ROSTER_FILE)) as database, database:
        database.execute("UPDATE roster SET document = replace(document, 'truck', 'trick') WHERE serial = 1")
    damaged, good = RosterReader(tmp_path).after()
    assert (damaged.document, good.document) == (None, ONE)
    assert "the roster's row of a.1 is damaged" in damaged.why
    with pytest.raises(LedgerError, match="damaged"):
        writer.put("a.1", ONE)
    (tmp_path / ROSTER_FILE).write_bytes(b"nothing of SQLite's" * 100)
    for path in tmp_path.glob("*-wal"):
        path.unlink()
    with pytest.raises(LedgerError, match="damaged"):
        RosterReader(tmp_path).serial()


KILLED = """
import sys
from pathlib import Path
from geartrain_cloud.log.roster import RosterChannel, RosterDocument, RosterWriter
writer = RosterWriter(Path(sys.argv[1]))
document = RosterDocument({"readings": RosterChannel(("readings",))}, ("readings",))
serial = writer.put("a.1", document)
while True:
    serial = writer.put_device("a.1", f"d{serial}")
    print(serial, flush=True)
"""


def test_what_a_killed_writer_said_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split()]
    (row,) = RosterReader(tmp_path).after()
    assert row.document is not None
    assert row.serial >= said[-1]
    assert len(row.document.devices) == row.serial - 1
    assert RosterWriter(tmp_path).put_device("a.1", "last") == row.serial + 1
