"""One request after another: what is tried again, what is made once, and what cannot hold the client up."""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from geartrain.errors import ConfigError, GeartrainError
from geartrain_client.cli import main
from geartrain_client.errors import FailedError, RefusedError, StoppedError, UnreachableError
from geartrain_client.rest import exchange
from geartrain_client.rest import platform as client_platform
from geartrain_client.rest.door import CA, Door, find_door, parse_url
from geartrain_client.rest.platform import ATTEMPTS, Platform, segment
from geartrain_cloud.certs import Fleet
from geartrain_cloud.supervisor.folder_lock import FolderLock
from tests.client import fake_platform as fake
from tests.client.fake_platform import TOKEN, FakePlatform, running
from tests.ports import free_port


@pytest.fixture
def asking(platform: FakePlatform) -> Platform:
    return Platform(find_door(), sleep=lambda _: None)


DEVICE = {"name": "a", "labels": {}}


@pytest.mark.parametrize("trouble", [fake.hang_up, fake.unavailable, fake.cut_short])
def test_a_request_is_tried_again(trouble: fake.Trouble, asking: Platform, platform: FakePlatform) -> None:
    platform.troubles.extend([trouble] * (ATTEMPTS - 1))
    assert asking.get("/status")["version"] == "0.2.0"
    assert len(platform.asked) == ATTEMPTS


@pytest.mark.parametrize("trouble", [fake.hang_up, fake.lose_the_answer, fake.unavailable, fake.cut_short])
def test_a_change_is_made_once_however_often_it_is_sent(
    trouble: fake.Trouble, asking: Platform, platform: FakePlatform
) -> None:
    platform.troubles.extend([trouble, trouble])
    assert asking.change("POST", "/devices", DEVICE)["device"]["name"] == "a"
    keys = {headers["idempotency-key"] for _, _, headers, _ in platform.asked}
    assert (len(platform.asked), len(keys)) == (3, 1)
    with pytest.raises(RefusedError, match="was added already"):  # another change has another key
        asking.change("POST", "/devices", DEVICE)


def test_attempts_are_bounded_and_pauses_grow(platform: FakePlatform) -> None:
    pauses: list[float] = []
    platform.troubles.extend([fake.unavailable] * 50)
    with pytest.raises(FailedError, match=r"^control is starting$"):
        Platform(find_door(), sleep=pauses.append).get("/status")
    assert len(platform.asked) == ATTEMPTS
    assert pauses == sorted(pauses)
    assert sum(pauses) < 5


@pytest.mark.parametrize("path", ["/apps/none", "/apps/none/logs?lines=1", "/devices/none"])
def test_a_refusal_is_not_tried_again(path: str, asking: Platform, platform: FakePlatform) -> None:
    with pytest.raises(RefusedError, match="there is no") as refused:
        asking.get(path)
    assert (refused.value.status, refused.value.code, len(platform.asked)) == (404, "not_found", 1)


def test_a_wrong_token_is_a_sentence(platform: FakePlatform, tmp_path: Path) -> None:
    door = find_door()
    with pytest.raises(RefusedError, match="does not take this token: name the file"):
        Platform(Door(door.host, door.port, token="other")).get("/status")
    with pytest.raises(RefusedError, match="asks for a token"):
        Platform(Door(door.host, door.port)).get("/status")


def test_a_platform_at_the_address_of_one_that_has_ended_is_not_taken_for_it(
    platform: FakePlatform, tmp_path: Path
) -> None:
    door = find_door()
    former = Door(door.host, door.port, token="of the former one", folder=tmp_path)
    with pytest.raises(RefusedError, match=f"may be another one, for no gear up runs in {tmp_path}: start"):
        Platform(former).get("/status")


def test_no_redirect_is_followed_and_no_proxy_used(
    asking: Platform, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    platform.troubles.append(fake.moved)
    with pytest.raises(RefusedError, match="is no platform: status 307"):
        asking.get("/status")
    assert [path for _, path, _, _ in platform.asked] == ["/api/v1/status"]
    assert asking.get("/status")


def test_what_is_no_platform_is_a_sentence(asking: Platform, platform: FakePlatform) -> None:
    platform.troubles.append(fake.no_json)
    with pytest.raises(FailedError, match="is no platform: it sent no JSON"):
        asking.get("/status")


def test_an_answer_that_never_ends_ends(asking: Platform, platform: FakePlatform) -> None:
    platform.troubles.extend([fake.endless] * 9)
    began_s = time.monotonic()
    with pytest.raises(UnreachableError, match=r"has not answered within 0\.3 s"):
        asking.get("/status", timeout_s=0.3)
    assert time.monotonic() - began_s < 30
    assert len(platform.asked) == 1


def test_an_answer_above_its_bound_is_refused(
    asking: Platform, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ANSWER_BYTES_MAX", 10)
    with pytest.raises(UnreachableError, match="an answer of more than 10 bytes"):
        asking.get("/status")


def test_nobody_there_is_a_sentence_that_says_what_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for door, todo in (
        (Door("127.0.0.1", port, folder=tmp_path), "nobody listens there.: start it with gear up$"),
        (Door("127.0.0.1", port), "start it with gear up there, or name another --url$"),
    ):
        with pytest.raises(UnreachableError, match=todo):
            Platform(door, sleep=lambda _: None).get("/status")
    here = Platform(Door("127.0.0.1", port, folder=tmp_path), sleep=lambda _: None)
    with FolderLock(tmp_path):  # as gear up does
        with pytest.raises(UnreachableError, match=r"though gear up runs: its control is starting, or .*log"):
            here.get("/status")
        monkeypatch.setattr(exchange, "FULL_BYTES", 1 << 60)
        with pytest.raises(UnreachableError, match=f"though gear up runs: the disk of {tmp_path} is full: "):
            here.get("/status")
    with pytest.raises(UnreachableError, match=r"nobody listens there.: start it with gear up$"):
        here.get("/status")


def served_by(folder: Path, hosts: list[str], now: datetime | None = None) -> tuple[Fleet, ssl.SSLContext]:
    """An authority, and what a server shows that has a certificate of it for a day from `now` on."""
    fleet = Fleet(folder)
    fleet.init("fleet")
    fleet.issue("server", "platform", hosts, days=1, now=now)
    paths = fleet.paths("server", "platform")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(paths.certificate, paths.key)
    return fleet, tls


def test_over_https_the_certificate_must_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, tls = served_by(tmp_path / "certs", ["127.0.0.1"])
    with running(FakePlatform(), tls) as platform:
        there = parse_url(platform.url, "--url")
        door = Door(there.host, there.port, secure=True, token=TOKEN)
        monkeypatch.setenv("SSL_CERT_FILE", str(fleet.ca))
        assert Platform(door).get("/status")["version"] == "0.2.0"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(
            UnreachableError, match=r"not trusted here .*: name the file .* with GEARTRAIN_CA$"
        ):
            Platform(door, attempts=1).get("/status")
        assert len(platform.asked) == 1  # the token was shown to the right one only
        assert Platform(replace(door, ca=str(fleet.ca))).get("/status")
        other = Fleet(tmp_path / "other")
        other.init("fleet")
        with pytest.raises(UnreachableError, match="not trusted here"):
            Platform(replace(door, ca=str(other.ca)), attempts=1).get("/status")
        (tmp_path / "no.pem").write_text("no PEM")
        for name, why in (("no.pem", "is no certificate in PEM"), ("none.pem", "No such file")):
            with pytest.raises(ConfigError, match=f"{name}: {why}.*: name the right file with GEARTRAIN_CA$"):
                Platform(replace(door, ca=str(tmp_path / name))).get("/status")
        assert len(platform.asked) == 2


def test_gear_takes_the_authority_from_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, tls = served_by(tmp_path / "certs", ["127.0.0.1"])
    monkeypatch.setenv(CA, str(tmp_path / "none.pem"))
    monkeypatch.setenv("GEARTRAIN_TOKEN", TOKEN)
    with running(FakePlatform(), tls) as platform:
        url = platform.url
        assert main(["status", "--url", url]) == 2
        assert "none.pem: No such file" in capsys.readouterr().err
        assert main(["--ca", str(fleet.ca), "status", "--url", url]) == 0
        assert "platform 0.2.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hosts", "age", "why"),
    [
        (["127.0.0.1"], timedelta(days=3), r"has expired: renew it there"),
        (["127.0.0.1"], timedelta(days=-3), r"is not valid yet: renew it there"),
        (["10.0.0.9"], timedelta(0), r"is not for 127\.0\.0\.1: name the platform as its certificate does"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(
    hosts: list[str], age: timedelta, why: str, tmp_path: Path
) -> None:
    fleet, tls = served_by(tmp_path / "certs", hosts, datetime.now(UTC) - age)
    with running(FakePlatform(), tls) as platform:
        there = parse_url(platform.url, "--url")
        door = Door(there.host, there.port, secure=True, token=TOKEN, ca=str(fleet.ca))
        with pytest.raises(UnreachableError, match=f"shows a certificate that {why}"):
            Platform(door, attempts=1).get("/status")
        assert platform.asked == []


def test_https_where_nobody_speaks_it_is_a_sentence(platform: FakePlatform) -> None:
    door = replace(find_door(), secure=True)
    with pytest.raises(UnreachableError, match=r"does not speak TLS: is it http:// there\?$"):
        Platform(door, attempts=1).get("/status")


def test_a_token_never_leaves_the_machine_in_clear() -> None:
    with pytest.raises(ConfigError, match=r"^http://192\.0\.2\.1:80 is not encrypted, .* by https://"):
        Platform(Door("192.0.2.1", 80, token=TOKEN)).get("/status")


def test_all_pages_of_a_list_are_read(asking: Platform, platform: FakePlatform) -> None:
    for number in range(7):
        asking.change("POST", "/devices", {"name": f"d{number}"})
    platform.asked.clear()
    assert [one["name"] for one in asking.items("/devices")] == [f"d{number}" for number in range(7)]
    assert len(platform.asked) == 4


def test_a_sentence_of_others_is_one_line_that_steers_no_terminal(
    asking: Platform, platform: FakePlatform
) -> None:
    def hostile(handler: fake.Handler, usual: object) -> bool:
        sentence = "no\ngear: done\x1b[2J\u202e " + "x" * 9_000
        handler.send(400, {"error": {"code": "bad", "sentence": sentence}})
        return True

    platform.troubles.append(hostile)
    with pytest.raises(RefusedError) as refused:
        asking.get("/status")
    said = str(refused.value)
    assert said.startswith("no gear: done\\x1b[2J\\u202e xxx")
    assert said.isprintable()
    assert len(said) < 2_100


@pytest.mark.parametrize("answer", [[], {"items": 7}, "x", None])
def test_a_list_of_another_form_is_a_sentence(
    answer: object, asking: Platform, platform: FakePlatform
) -> None:
    def odd(handler: fake.Handler, usual: object) -> bool:
        handler.send(200, answer)
        return True

    platform.troubles.append(odd)
    with pytest.raises(GeartrainError, match="sent no list"):
        list(asking.items("/apps"))


@pytest.mark.parametrize(
    ("name", "part"),
    [("a", "a"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), (".", "%2E"), ("a.b", "a.b"), ("?", "%3F")],
)
def test_a_name_is_one_part_of_a_path(name: str, part: str) -> None:
    assert segment(name) == part


def test_ctrl_c_before_the_answer_to_a_change_says_that_it_may_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client_platform, "exchange", interrupted)
    asking = Platform(Door("127.0.0.1", 1))
    with pytest.raises(KeyboardInterrupt):
        asking.change("POST", "/apps/heat/move", {"dry_run": True})
    with pytest.raises(KeyboardInterrupt):
        asking.get("/status")
    with pytest.raises(
        StoppedError, match=r"^stopped by SIGINT; no answer came: the platform may have begun"
    ):
        asking.change("POST", "/apps/heat/move", {"step": "high"})
    monkeypatch.setenv("GEARTRAIN_URL", "http://127.0.0.1:1")
    assert main(["replay", "heat"]) == 130
    assert capsys.readouterr().err.startswith("gear: stopped by SIGINT; no answer came: ")
