"""`gear-ingest` follows a roster while it is killed with -9: apps and devices come and go; the log is exact.

Real agents over a real broker; the rows in the log are compared with records made here in plain Python.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.toml_text import to_toml
from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.roster import RosterChannel, RosterDocument, RosterWriter
from geartrain_cloud.ports import Entry, EntryKind
from tests.process.brokers import HOST, Mosquitto
from tests.process.flows import check_of, is_poison
from tests.process.programs import Program
from tests.process.world import COMMIT, UPLINK
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

RECORDS, A_SECOND = 300, 60.0
KILLS = 8
READY = "ready with term"
GOOD = [number for number in range(RECORDS) if not is_poison(number)]
DOCUMENT = RosterDocument({"numbers": RosterChannel(("numbers",))}, ("numbers",))


class Platform:
    """A broker, ingest that is killed now and then, agents, and a roster."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.log, self.random = folder, folder / "log", random.Random(seed)
        self.broker = Mosquitto(folder)
        self.log.mkdir()
        self.roster = RosterWriter(self.log)
        self.ingest = Program(
            "ingest", "geartrain_cloud.ingest.main", folder / "ingest.toml", folder / "ingest.log"
        )
        content = {"log": {"folder": str(self.log), "merge": False}, "broker": f"{HOST}:{self.broker.port}"}
        self.ingest.config.write_text(to_toml(content), encoding="utf-8")
        self.agents: dict[tuple[str, str], Program] = {}
        self.said = 0

    def agent(self, instance: str, device: str) -> Program:
        """Start the agent of a device in an instance; one that was there is another life of it."""
        if (instance, device) in self.agents:
            self.agents[instance, device].start()
            return self.agents[instance, device]
        home = self.folder / f"{instance}-{device}"
        home.mkdir()
        content = {
            "device": device,
            "flow": "tests.process.flows:plain",
            "instance": instance,
            "cut": "edge",
            "state": str(home / "state"),
            "broker": f"{HOST}:{self.broker.port}",
            "commit": COMMIT,
            "uplink": UPLINK,
            "sources": {"numbers": {"records": RECORDS, "per_second": A_SECOND}},
        }
        (home / "agent.toml").write_text(to_toml(content), encoding="utf-8")
        made = Program(home.name, "geartrain_edge.agent.process", home / "agent.toml", home / "said.log")
        self.agents[instance, device] = made
        made.start()
        return made

    def is_ready(self) -> bool:
        """Whether the life of ingest at hand takes batches."""
        return READY in self.ingest.words()[self.said :]

    async def kill_ingest_now_and_then(self) -> None:
        """kill -9 at any moment, in the midst of a start too, and a new life soon after."""
        for _ in range(KILLS):
            if self.random.random() < 0.7:
                await self.until(self.is_ready, "a start of ingest")
            await asyncio.sleep(self.random.uniform(0, 2.0))
            self.ingest.kill()
            self.said = len(self.ingest.words())
            await asyncio.sleep(self.random.uniform(0, 0.5))
            self.ingest.start()

    async def has_rows(self, instance: str, *devices: str, more: int = 1) -> None:
        """Wait until the log has rows of each of these devices."""
        await self.until(
            lambda: all(self.count(instance, device) >= more for device in devices),
            f"rows of {devices} in {instance}",
        )

    async def until(self, condition: Any, what: str) -> None:
        deadline_s = asyncio.get_running_loop().time() + WAIT_S
        while not condition():
            assert asyncio.get_running_loop().time() < deadline_s, f"{what}\n{self.ingest.words()[-3_000:]}"
            await asyncio.sleep(0.2)

    def entries(self, instance: str) -> list[Entry]:
        reader = LogReader(self.log)
        upto = reader.positions(instance)
        return [entry for key in sorted(upto) for entry in reader.entries(instance, key, 0, upto[key])]

    def count(self, instance: str, device: str) -> int:
        """The rows of a device in the log."""
        return sum(entry.count for entry in self.entries(instance) if entry.device == device)

    def numbers(self, instance: str, device: str) -> list[int]:
        """Of the rows of a device, in the log's order; each is what the device must have read."""
        reader, found = LogReader(self.log), list[int]()
        for entry in self.entries(instance):
            if entry.segment and (entry.device, entry.channel) == (device, "numbers"):
                for row in reader.table(entry).to_pylist():
                    assert (row["device"], row["check"]) == (device, check_of(device, row["number"]))
                    found.append(row["number"])
        return found

    def declared(self, instance: str, device: str) -> int:
        """The rows of a device that the log says were dropped."""
        return sum(
            int(entry.reason["count"])
            for entry in self.entries(instance)
            if entry.kind is EntryKind.DROPPED and (entry.device, entry.channel) == (device, "numbers")
        )

    def close(self) -> None:
        for program in (self.ingest, *self.agents.values()):
            program.kill()
        self.broker.kill()


async def come_and_go(platform: Platform) -> None:
    """What a person does to a platform, while ingest is killed."""
    roster = platform.roster
    await platform.broker.start()
    platform.ingest.start()
    await platform.until(platform.is_ready, "the first start of ingest")
    killer = asyncio.create_task(platform.kill_ingest_now_and_then())
    roster.put("plain.1", DOCUMENT)
    for device in ("d1", "d2"):
        platform.agent("plain.1", device)  # before anybody knows of it
        roster.put_device("plain.1", device)
    await platform.has_rows("plain.1", "d1", "d2")
    roster.put("plain.2", DOCUMENT)
    for device in ("d1", "d3"):
        roster.put_device("plain.2", device)
        platform.agent("plain.2", device)
    roster.remove_device("plain.1", "d1")  # its agent never hears of it
    await platform.has_rows("plain.2", "d1", "d3", more=30)
    roster.remove_device("plain.2", "d3")
    platform.agents["plain.2", "d3"].kill()
    platform.agent("plain.1", "d3")
    roster.put_device("plain.1", "d3")
    shutil.rmtree(platform.folder / "plain.2-d3" / "state")  # other hardware takes its name
    platform.agent("plain.2", "d3")
    roster.put_device("plain.2", "d3")
    await platform.has_rows("plain.2", "d3", more=60)
    roster.end("plain.2")
    roster.put("plain.3", DOCUMENT)
    roster.put_device("plain.3", "d2")
    platform.agent("plain.3", "d2")
    await platform.until(
        lambda: all(agent.code == 0 for agent in platform.agents.values()), "the end of all agents"
    )
    await killer
    await platform.until(
        lambda: all(
            platform.entries(instance)[-1].clock(["numbers"]) == END_OF_TIME
            for instance in ("plain.1", "plain.3")
        ),
        "the end of all clocks",
    )
    await platform.until(platform.is_ready, "the last start of ingest")
    assert platform.ingest.terminate() == 0


def test_the_log_is_exact_though_ingest_is_killed_as_apps_and_devices_come_and_go(tmp_path: Path) -> None:
    platform = Platform(tmp_path, seed=3)
    try:
        asyncio.run(come_and_go(platform))
    finally:
        platform.close()
    assert platform.ingest.lives == KILLS + 1
    for instance, device in (("plain.1", "d2"), ("plain.1", "d3"), ("plain.3", "d2")):
        assert platform.numbers(instance, device) == GOOD
        assert not platform.declared(instance, device)
    retired = platform.numbers("plain.1", "d1")
    assert retired == GOOD[: len(retired)]
    assert len(retired) + platform.declared("plain.1", "d1") == len(GOOD)
    for device in ("d1", "d3"):
        ended = platform.numbers("plain.2", device)
        assert ended == [number for number in GOOD if number in set(ended)]  # each once, in order
    for instance, wanted in (("plain.1", {"d2", "d3"}), ("plain.2", set()), ("plain.3", {"d2"})):
        entries = platform.entries(instance)
        kinds = [entry.kind for entry in entries]
        assert kinds.count(EntryKind.ENDED) == (instance == "plain.2")
        assert EntryKind.ENDED not in kinds[:-1]  # nothing behind it
        moves = Counter[str]()
        for entry in entries:
            moves[entry.device] += {EntryKind.ASSIGNED: 1, EntryKind.RETIRED: -1}.get(entry.kind, 0)
            assert moves[entry.device] in (0, 1)
        if instance != "plain.2":
            assert {device for device, count in moves.items() if count} == wanted
    assert not platform.ingest.has_trace(), platform.ingest.words()[-4_000:]
