"""What a device sent goes out of a stopped log: of its values no byte stays, and the rest stays as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from geartrain.errors import LedgerError
from geartrain.schema import ColumnBatch
from geartrain_client.cli import main
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.erasure import Erased, erasable, erase_device
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.opening import shared_log
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.verify import verify_log
from geartrain_cloud.ports import Entry, EntryKind
from tests.cloud.fleet import FLOW, QUOTE, Quote, TestDevice, make_config, running
from tests.spark.log_writer import LogWriter

GONE, STAYS = "device-1", "device-2"


class KilledError(Exception):
    """Stands for a kill at a step."""


def config(folder: Path) -> IngestConfig:
    return make_config(folder, devices=(GONE, STAYS))


def value_of(device: str, number: int) -> bytes:
    """What a search finds in files: a symbol of no other device."""
    return f"{device}-secret-{number:03d}".encode()


def secret(device: TestDevice, number: int) -> bytes:
    """A batch of two rows."""
    quotes = [Quote(f"{value_of(device.name, number).decode()}-{one}", float(number)) for one in (1, 2)]
    device.time += 10
    times, numbers = [device.time] * 2, [device.number, device.number + 1]
    device.number += 2
    columns = ColumnBatch(QUOTE.to_columns(quotes), times, [device.name] * 2, numbers)
    return device.rows("quotes", QUOTE.schema, columns)


def fill(folder: Path, devices: Iterable[str], rounds: int = 6) -> None:
    """Rows of these devices, interleaved, several in one segment, and a quarantined batch of each."""

    async def run() -> None:
        async with running(config(folder)) as world:
            several = [TestDevice(name) for name in devices]
            for one in several:
                world.net.deliver(one.topic, one.schemas())
                await world.net.acked(one)
            for number in range(rounds):
                for one in several:
                    world.net.deliver(one.topic, secret(one, number))
                for one in several:
                    await world.net.acked(one)
            for number, one in enumerate(several, 1):
                clone = TestDevice(one.name)
                clone.schemas()
                world.net.deliver(one.topic, secret(clone, 666))
                await world.counted(Counter.QUARANTINED_BATCHES, number)

    asyncio.run(run())


def rows(folder: Path, device: str) -> list[tuple[int, list[dict[str, object]]]]:
    reader = LogReader(folder)
    return [
        (e.number, reader.table(e).to_pylist()) for e in entries(folder) if e.segment and e.device == device
    ]


def entries(folder: Path) -> list[Entry]:
    reader = LogReader(folder)
    return reader.entries(FLOW, "0", 0, reader.positions(FLOW)["0"])


def holds(folder: Path, device: str) -> list[str]:
    """The files in which a value of a device is found."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and f"{device}-secret".encode() in path.read_bytes()
    ]


def test_no_byte_stays_and_the_rest_stays_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path, (GONE, STAYS))
    before, kept, clocks = entries(tmp_path), rows(tmp_path, STAYS), LogReader(tmp_path).clocks(FLOW, "0", 9)
    assert holds(tmp_path, GONE)
    assert holds(tmp_path, STAYS)
    found = erase_device(tmp_path, GONE)
    assert (found.flows, found.rows, found.quarantined) == ((FLOW,), 12, 1)
    assert holds(tmp_path, GONE) == []
    assert rows(tmp_path, STAYS) == kept
    assert rows(tmp_path, GONE) == []
    after = entries(tmp_path)
    assert [(e.number, e.clocks, e.device, e.seq) for e in after] == [
        (e.number, e.clocks, e.device, e.seq) for e in before
    ]
    erased = [e for e in after if e.reason.code == EntryCode.ROWS_ERASED]
    assert {(e.kind, e.device, e.count, e.channel) for e in erased} == {(EntryKind.WATERMARK, GONE, 0, "")}
    assert LogReader(tmp_path).clocks(FLOW, "0", 9) == clocks
    assert LogReader(tmp_path).counters()["records_erased"] == 12
    verified = verify_log(tmp_path)
    assert (verified.damages, verified.rows) == ([], 12)
    assert erase_device(tmp_path, GONE) == Erased(assigned=(FLOW,))
    assert erase_device(tmp_path, "nobody") == Erased()


def test_a_log_goes_on_after_it_and_is_erased_again(tmp_path: Path) -> None:
    fill(tmp_path, (GONE, STAYS), 2)
    erase_device(tmp_path, GONE)
    counters = LogReader(tmp_path).counters()
    assert (counters["quarantined_batches"], counters["records_logged"]) == (1, 8)

    async def run() -> None:
        async with running(config(tmp_path)) as world:
            later = TestDevice(GONE, epoch=b"epoch--2")
            later.time = 1_000
            world.net.deliver(later.topic, later.hello(2), later.schemas(), secret(later, 7))
            await world.net.acked(later)

    asyncio.run(run())
    assert holds(tmp_path, GONE)
    assert verify_log(tmp_path).damages == []
    assert [len(found) for _, found in rows(tmp_path, GONE)] == [2]
    erase_device(tmp_path, GONE)
    erase_device(tmp_path, STAYS)
    assert holds(tmp_path, GONE) == holds(tmp_path, STAYS) == []
    assert verify_log(tmp_path).rows == 0


def test_a_kill_at_any_step_leaves_a_whole_log_and_the_next_call_goes_on(tmp_path: Path) -> None:
    fill(tmp_path / "model", (GONE, STAYS), 3)
    steps = list[str]()
    erase_device(_copy(tmp_path / "model", tmp_path / "first"), GONE, steps.append)
    assert len(steps) > 5
    kept = rows(tmp_path / "model", STAYS)
    for at in range(len(steps)):
        folder, seen = _copy(tmp_path / "model", tmp_path / f"at-{at}"), list[str]()

        def reached(what: str, seen: list[str] = seen, at: int = at) -> None:
            seen.append(what)
            if len(seen) > at:
                raise KilledError

        with pytest.raises(KilledError):
            erase_device(folder, GONE, reached)
        assert verify_log(folder).damages == []
        assert rows(folder, STAYS) == kept
        erase_device(folder, GONE)
        assert holds(folder, GONE) == []
        assert rows(folder, STAYS) == kept
        assert LogReader(folder).counters()["records_erased"] == 6


def test_segments_without_a_checksum_are_left_alone(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, FLOW, {"quotes": Quote})
    log.append("quotes", [(Quote("S1", 1.0), 10, "split", 0)])
    log.close()
    (entry,) = (one for one in entries(tmp_path) if one.segment)
    erase_device(tmp_path, "nobody")
    assert (tmp_path / entry.segment).is_file()
    with pytest.raises(LedgerError, match="no checksum of segment"):
        erase_device(tmp_path, entry.device)
    assert (tmp_path / entry.segment).is_file()


def test_it_is_refused_while_ingest_runs_and_for_a_damaged_segment(tmp_path: Path) -> None:
    fill(tmp_path, (GONE, STAYS), 2)
    with shared_log(tmp_path), pytest.raises(LedgerError, match="stop the platform first"):
        erase_device(tmp_path, GONE)
    (one, *_) = sorted((tmp_path / "segments").rglob("*.arrow"))
    whole = one.read_bytes()
    one.write_bytes(whole[:-9] + bytes(9))
    with pytest.raises(LedgerError, match="is damaged: restore the file from a copy"):
        erase_device(tmp_path, GONE)
    one.write_bytes(whole)
    erase_device(tmp_path, GONE)
    assert holds(tmp_path, GONE) == []


def test_the_command_says_what_there_is_and_does_it_when_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "log", (GONE, STAYS), 2)
    state = str(tmp_path)
    assert main(["log", "erase", GONE, "--state", state]) == 0
    said = capsys.readouterr().out
    assert "4 rows in" in said
    assert "nothing was changed" in said
    assert f"{GONE} is still assigned to {FLOW}: " in said
    assert erasable(tmp_path / "log", GONE).rows == 4
    assert main(["log", "erase", GONE, "--state", state, "--yes"]) == 0
    assert f"of {FLOW} still hold it: gear replay {FLOW}, once the platform runs" in capsys.readouterr().out
    assert main(["log", "erase", GONE, "--state", state, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 0


def _copy(source: Path, target: Path) -> Path:
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return target
