"""`gear secret set --wait`: it ends once all have the value, and else says who has not, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from geartrain.control.sealed import SPARK_PROCESS
from geartrain_client.cli import waiting
from geartrain_client.cli.secrets import set_secret
from geartrain_client.errors import FailedError, UnreachableError

Capture = pytest.CaptureFixture[str]
VALUE = "planted-6Hy1-value"


def told(
    applied: int, wanted: int = 2, version: int = 7, why: str = "it was not heard since"
) -> dict[str, Any]:
    on = [{"device": "d2", "version": 0, "why": why}, {"device": "d1", "version": version, "why": ""}]
    lists = on if applied < wanted else on[1:]
    return {
        "app": "heat",
        "name": "pw",
        "version": version,
        "set_us": 5,
        "wanted": wanted,
        "applied": applied,
        "devices": lists if wanted else [],
    }


class Platform:
    """Answers one after the other, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0

    def change(self, method: str, path: str, body: Any) -> Any:
        assert (method, path, body) == ("PUT", "/apps/heat/secrets/pw", {"value": VALUE})
        return told(0)

    def items(self, path: str, app: str) -> Iterator[Any]:
        assert (path, app) == ("/secrets", "heat")
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        yield from found


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "INTERVAL_S", 0.0)


def run(platform: Platform, wait_s: float | None = 60.0, *, as_json: bool = False) -> None:
    set_secret(platform, "heat", "pw", VALUE, wait_s, as_json=as_json)  # type: ignore[arg-type]


def test_it_ends_once_all_have_it(capsys: Capture) -> None:
    platform = Platform([told(0)], UnreachableError("away", timed_out=False), [told(1)], [told(2)])
    run(platform)
    assert platform.asked == 4
    said = capsys.readouterr()
    assert "secret pw of app heat has version 7; 2 devices have it" in said.out
    assert VALUE not in said.out + said.err
    with_host = told(2) | {"devices": [{"device": SPARK_PROCESS, "version": 7, "why": ""}]}
    run(Platform([with_host]))
    assert "version 7; 1 device and the Spark host have it" in capsys.readouterr().out
    run(Platform([with_host | {"wanted": 1, "applied": 1}]))
    assert "version 7; the Spark host has it" in capsys.readouterr().out
    run(Platform([told(2)]), as_json=True)
    assert json.loads(capsys.readouterr().out)["applied"] == 2


def test_where_no_device_is_to_have_it_nothing_is_waited_for(capsys: Capture) -> None:
    run(Platform([told(0, wanted=0)]))
    assert "0 devices have it" in capsys.readouterr().out


def test_without_the_option_nothing_is_asked_again() -> None:
    platform = Platform([told(2)])
    run(platform, None)
    assert platform.asked == 0


def test_time_that_is_up_names_one_that_has_it_not() -> None:
    with pytest.raises(
        FailedError, match=r"1 of 2 devices has it not: d2: its agent is older.*see gear secret ls"
    ):
        run(Platform([told(1, why="its agent is older")]), 0.0)


@pytest.mark.parametrize(
    ("now", "said"), [([], "was removed meanwhile"), ([told(0, version=9)], "was set anew meanwhile")]
)
def test_another_value_or_none_is_not_waited_for(now: list[Any], said: str) -> None:
    with pytest.raises(FailedError, match=said):
        run(Platform(now))
