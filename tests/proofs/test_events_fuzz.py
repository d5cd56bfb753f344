"""`/events` under hostile parameters and places: each stream is read as far as its first heartbeat.

test_rest_fuzz leaves this route out, since its answer never ends. What must come is worked out here from the
list of events. The seed is fixed; `python -m tests.proofs.test_events_fuzz 20000` throws more.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from urllib.parse import quote

import hypothesis
import msgspec
from hypothesis import strategies

from geartrain_cloud.control.server import listen, make_app
from geartrain_cloud.control.streaming import Streams
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import ControlSection
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.audit import AuditLog
from tests.proofs.fuzzing import drawn
from tests.waiting import WAIT_S

EXAMPLES = 200
GONE, NEWEST = 3, 12
"""Events 1 to 12 have been, of which the first three are there no more."""
APPS = ("heat", "cold", "")
BOUNDS = {"after": (0, 10**15), "since_us": (-(2**63), 7_258_118_400_000_000)}
HOSTILE = (
    *("", " 1", "1 ", "+1", "1e3", "0x1", "1_0", "1.0", "-0", "007", "NaN", "null", "true", "[1]", "1,2"),
    *(
        "\u0661",
        "\uff11",
        "\xb2",
        "1\r\nX-Y: 1",
        "1\0",
        "\x1b[2J",
        "\u202e1",
        "1 OR 1=1",
        "';--",
        "../x",
        "%31",
    ),
    *("9" * 18, "9" * 19, "9" * 20, "9" * 400, "heat.1", "Heat", "heat'", "h" * 48, "h" * 49, "none_such"),
)
NUMBERS = strategies.integers(0, 15).map(str)
TIMES = strategies.integers(-1, 13_001).map(str)
KNOWN = strategies.sampled_from(APPS)
TEXTS = strategies.one_of(
    NUMBERS, TIMES, KNOWN, strategies.sampled_from(HOSTILE), strategies.integers().map(str), strategies.text()
)
NAMES = strategies.sampled_from(("after", "since_us", "app") * 4 + ("App", "limit", "after[]", ""))
FIT = strategies.fixed_dictionaries({}, optional={"after": NUMBERS, "since_us": TIMES, "app": KNOWN})
QUESTIONS = FIT.map(lambda one: list(one.items())) | strategies.lists(
    strategies.tuples(NAMES, TEXTS), max_size=3
)
NO_HEADER = r"[\x00-\x1f\x7f]"
"""Bytes that no header may hold are refused before any route is asked."""
PLACES = strategies.lists(NUMBERS, max_size=1) | strategies.lists(
    TEXTS.filter(lambda text: not re.search(NO_HEADER, text)), max_size=2
)


def wanted(question: list[tuple[str, str]], places: list[str]) -> list[tuple[str, int]] | None:
    """The kind and number of all that must come; None where the request must be refused."""
    asked = dict(question)
    if len(asked) < len(question) or not asked.keys() <= {*BOUNDS, "app"}:
        return None
    for name, (least, most) in BOUNDS.items():
        text = asked.get(name, "0")
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
            return None
    app, places = asked.get("app", ""), [text.strip(" \t") for text in places]
    if app not in APPS:  # the name of none, or of one that never was
        return None
    if len(places) > 1 or not all(re.fullmatch(r"[0-9]{1,18}", text) for text in places):
        return None
    start = NEWEST
    if places:
        start = int(places[0])
    elif "after" in asked:
        start = int(asked["after"])
    elif "since_us" in asked:
        since = int(asked["since_us"])
        start = next((n - 1 for n in range(GONE + 1, NEWEST + 1) if 1_000 * n >= since), NEWEST)
        start -= start == GONE  # whether the one before it was of before is not known
    at = min(max(start, GONE), NEWEST)
    missed = [("missed", at)] if at != start else []
    numbers = [n for n in range(at + 1, NEWEST + 1) if app in ("", APPS[n % 3])]
    return [("begin", start), *missed, *(("app" if APPS[n % 3] else "device", n) for n in numbers)]


def fill(store: ControlStore) -> None:
    with store.database.change() as database:
        for number in range(1, NEWEST + 1):
            app = APPS[number % 3]
            row = (1_000 * number, "app" if app else "device", app, "" if app else "d1", "{}")
            database.execute(
                "INSERT INTO events (at_us, kind, app, device, said) VALUES (?, ?, ?, ?, ?)", row
            )
        database.execute("DELETE FROM events WHERE number <= ?", (GONE,))


async def ask(port: int, question: list[tuple[str, str]], places: list[str]) -> list[tuple[str, int]] | None:
    """What comes before the first heartbeat; None for a refusal, whose form is checked."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        said = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in question)
        lines = [f"GET /api/v1/events?{said} HTTP/1.0", "Host: 127.0.0.1", "Authorization: Bearer own"]
        lines += [f"Last-Event-ID: {text}" for text in places]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if " 200 " not in head.partition("\r\n")[0]:
            names_one = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", dict(question).get("app", ""))
            assert re.match(rf"HTTP/1\.[01] {'40[04]' if names_one else '400'} ", head), head
            failure = msgspec.json.decode(await reader.read(), type=answers.Failure)
            assert failure.error.sentence.isprintable()
            return None
        assert "Content-Type: text/event-stream\r\n" in head
        found: list[tuple[str, int]] = []
        while b"data: " in (block := await reader.readuntil(b"\n\n")):
            fields = dict(line.split(": ", 1) for line in block.decode().strip().split("\n"))
            one = msgspec.json.decode(fields["data"], type=answers.Event)
            assert (fields["id"], fields["event"]) == (str(one.number), one.kind)
            found.append((one.kind, one.number))
        assert re.fullmatch(rb"id: [0-9]+\n\n", block)
        return found
    finally:
        writer.close()


def throw(folder: Path, examples: int) -> tuple[int, int]:
    """How many requests got a stream, and how many a refusal: each hostile text, and so many examples. Raises
    where one gets what it must not.
    """
    with asyncio.Runner() as runner:
        store = ControlStore(folder / "control.sqlite", lambda: 1)
        fill(store)
        audit = AuditLog(folder / "audit", lambda: 1)
        streams = Streams(store.events, dict, store.bearers.check, heartbeat_s=0.01)
        app = make_app(partial(store.bearers.look, own="own"), lambda _: None, audit, [streams])
        app.on_shutdown.append(streams.end)
        server, port, _ = runner.run(listen(app, ControlSection()))
        counts = [0, 0]

        async def judge(question: list[tuple[str, str]], places: list[str]) -> None:
            async with asyncio.timeout(WAIT_S):
                found = await ask(port, question, places)
                while any(one.is_there for one in streams._followers):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.001)
            assert found == wanted(question, places), json.dumps([question, places])
            counts[found is None] += 1

        @drawn(examples)
        @hypothesis.given(question=QUESTIONS, places=PLACES)
        def one(question: list[tuple[str, str]], places: list[str]) -> None:
            runner.run(judge(question, places))

        try:
            for text in HOSTILE:
                if not re.search(NO_HEADER, text):
                    runner.run(judge([], [text]))
                for name in ("after", "since_us", "app"):
                    runner.run(judge([(name, text)], []))
            one()
        finally:
            runner.run(server.cleanup())
            store.close()
            audit.close()
    return counts[0], counts[1]


def test_each_request_gets_its_events_or_a_refusal(tmp_path: Path) -> None:
    streams, refusals = throw(tmp_path, EXAMPLES)
    assert min(streams, refusals) >= EXAMPLES // 10


def main() -> None:
    """Throw as many as the command line says."""
    with tempfile.TemporaryDirectory() as folder:
        streams, refusals = throw(Path(folder), int(sys.argv[1]))
        print(f"{streams} streams, {refusals} refusals")


if __name__ == "__main__":
    main()
