"""Wrong tokens at a real server: counted, answered up to a bound, and in the audit log once a minute."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.control.server import listen, make_app
from geartrain_cloud.control_store.errors import ThrottledError
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import ControlSection
from geartrain_cloud.rest.access import Tokens
from geartrain_cloud.rest.audit import Auditing, AuditLog
from geartrain_cloud.rest.wrong_tokens import ADDRESSES_MAX, WINDOW_S, WRONG_MAX, WrongTokens
from tests.control.platform_client import Client


class Clock:
    """What the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0


def test_an_address_waits_after_too_many_and_a_good_token_never(tmp_path: Path) -> None:
    found = asyncio.run(asked_by_strangers(tmp_path))
    assert [status for status, *_ in found["wrong"]] == [401] * WRONG_MAX + [429] * 2
    _, headers, raw = found["wrong"][-1]
    said = json.loads(raw)["error"]
    assert (headers["retry-after"], said["code"]) == (str(round(WINDOW_S)), "throttled")
    assert said["sentence"].endswith("take a good one, or wait 60 s")
    assert [status for status, *_ in found["good"]] == [200]
    assert [status for status, *_ in found["none"]] == [401] * 3
    assert [status for status, *_ in found["later"]] == [401]
    [entry] = found["audit"]
    assert (entry["token"], entry["status"], entry["result"]) == ("", 401, "unauthorized")
    assert entry["asked"] == {"wrong_tokens": WRONG_MAX + 3, "addresses": 1, "of_this": WRONG_MAX + 3}
    assert entry["address"] == "127.0.0.1"


async def asked_by_strangers(folder: Path) -> dict[str, Any]:
    clock = Clock()
    store, audit = ControlStore(folder / "control.sqlite", lambda: 1), AuditLog(folder / "audit", lambda: 1)
    wrong = WrongTokens(audit, lambda: clock.now_s)
    answering = [Tokens(store.bearers, store.answers), Auditing(audit)]
    app = make_app(partial(store.bearers.look, own="own"), wrong.came, audit, answering)
    runner, port, _ = await listen(app, ControlSection())
    url = f"http://127.0.0.1:{port}"

    async def ask(token: str, times: int) -> list[Any]:
        one = Client(url, token)
        return [await asyncio.to_thread(one.raw, "GET", "/api/v1/tokens") for _ in range(times)]

    try:
        found = {"wrong": await ask("gear_guess", WRONG_MAX + 2)}
        found |= {"good": await ask("own", 1), "none": await ask("", 3)}
        clock.now_s += WINDOW_S
        found |= {"later": await ask("gear_guess", 1)}
        wrong.round()
        wrong.round()
        found |= {"audit": audit.page(10, 1_000, 0)[0]}
    finally:
        await runner.cleanup()
        store.close()
        audit.close()
    return found


def test_what_is_known_of_addresses_is_bounded(tmp_path: Path) -> None:
    clock, audit = Clock(), AuditLog(tmp_path / "audit", lambda: 1)
    wrong = WrongTokens(audit, lambda: clock.now_s)
    for _ in range(WRONG_MAX):
        wrong.came("10.0.0.1")
    with pytest.raises(ThrottledError):
        wrong.came("10.0.0.1")
    for number in range(ADDRESSES_MAX + 50):
        wrong.came(f"2001:db8:0:{number:x}::/64")
    wrong.came("10.0.0.1")  # it was forgotten for others, and has begun anew
    clock.now_s += WINDOW_S - 1
    wrong.round()
    assert audit.page(10, 1_000, 0)[0] == []
    clock.now_s += 1
    wrong.round()
    [entry] = audit.page(10, 1_000, 0)[0]
    assert entry["asked"] == {
        "wrong_tokens": WRONG_MAX + 1 + ADDRESSES_MAX + 50 + 1,
        "addresses": ADDRESSES_MAX,
        "of_this": WRONG_MAX + 2,
    }
    clock.now_s += WINDOW_S
    wrong.round()
    assert len(audit.page(10, 1_000, 0)[0]) == 1
    audit.close()


def test_what_the_audit_log_does_not_take_is_told_in_the_next_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, audit = Clock(), AuditLog(tmp_path / "audit", lambda: 1)
    wrong = WrongTokens(audit, lambda: clock.now_s)
    wrong.came("10.0.0.1")
    audit.close()
    clock.now_s += WINDOW_S
    wrong.round()
    assert "1 wrong tokens are not in the audit log yet" in caplog.text
