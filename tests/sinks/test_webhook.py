"""A sink of webhooks on a real HTTP server that fails in many ways, and under a writer that is killed."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from geartrain.schema import ColumnBatch, derive
from geartrain.sinks import Table, WebhookSink
from geartrain_cloud.hosting.prepared import SinkSaid
from geartrain_cloud.sinks import webhook
from geartrain_cloud.sinks.layout import AwayError, Layout, TableError
from geartrain_cloud.sinks.opening import SinkPlace
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.sinks.tables import rows
from tests.client.test_platform import served_by
from tests.sinks import hooked
from tests.sinks.hooked import (
    BATCHES,
    ROWS,
    Hooks,
    answers,
    hang_up,
    lose_the_answer,
    no_http,
    receiving,
    takes,
)
from tests.sinks.test_stores import Pair, columns, tables_of
from tests.waiting import WAIT_S


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_PAUSE_S", 0.005)


def opened(folder: Path, sink: WebhookSink) -> Tables:
    tables = tables_of(folder, sink, kind=Pair)
    tables.attach("q", "c", has_run=False)
    return tables


def pairs(*values: float) -> dict[str, list[ColumnBatch]]:
    return {"sink0": [columns(Pair, *((int(value), Pair("a", value)) for value in values))]}


def letters(folder: Path) -> list[str]:
    return [row["reason"] for row in rows(folder / "tables.sqlite", "dead_letters")]


def test_a_record_is_a_request_with_a_key(tmp_path: Path, hooks: Hooks) -> None:
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, headers={"X-Plant": "north"}))
    tables.write("q", 0, {"c": 1}, pairs(2, 1))
    tables.close()
    time = "1970-01-01T00:00:00.00000{}Z"
    assert [(key, body) for key, _, body in hooks.asked] == [
        (f"c-0-sink0-{n - 1}", {"symbol": "a", "value": n, "_id": f"s/{n}/01", "_time": time.format(n)})
        for n in (1, 2)
    ]
    headers = hooks.asked[0][1]
    assert (headers["X-Plant"], headers["Content-Type"]) == ("north", "application/json")


@pytest.mark.parametrize(
    "trouble",
    [
        answers(503),
        answers(500, "\x1b[31moops"),
        answers(429, Retry_After="0"),
        answers(409, "under way"),
        answers(301, Location="http://127.0.0.1:1/"),
        answers(401),
        hang_up,
        lose_the_answer,
        no_http,
    ],
)
def test_what_may_pass_is_tried_again_and_a_receiver_that_keeps_keys_has_all_once(
    tmp_path: Path, hooks: Hooks, trouble: hooked.Trouble
) -> None:
    hooks.troubles = [trouble] * 3
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, rows_max=2))
    tables.write("q", 0, {"c": 1}, pairs(*range(5)))
    tables.close()
    assert hooks.values == [0, 1, 2, 3, 4]
    assert [key for key, _, _ in hooks.asked] == ["c-0-sink0-0.1"] * 4 + ["c-0-sink0-2.3", "c-0-sink0-4"]
    assert letters(tmp_path) == []


def test_a_receiver_that_is_silent_holds_the_query_by_name(
    tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(*_: object) -> bool:
        hooks.heard.wait_for(lambda: hooks.troubles == [])  # until the test has seen enough
        return True

    sink = WebhookSink("alerts", url=hooks.url, timeout_s=0.2)
    tables = opened(tmp_path, sink)
    tables.write("q", 0, {"c": 1}, pairs(0))
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    hooks.troubles = [silent, silent]
    with pytest.raises(AwayError, match=r"^sink 'sink0': http://127\.0\.0\.1:\d+ does not answer within"):
        tables.write("q", 1, {"c": 2}, pairs(1, 2))
    with hooks.heard:
        hooks.troubles.clear()
        hooks.heard.notify_all()
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 60.0)
    tables._store_of["sink0"].declare("sink0", replace(sink, timeout_s=60.0), derive(Pair))
    tables.write("q", 1, {"c": 2}, pairs(1, 2))
    tables.close()
    assert hooks.values == [0, 1, 2]
    assert "in-url" not in caplog.text


def test_after_a_failure_a_micro_batch_goes_on_where_it_was(
    tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url))
    monkeypatch.setattr(webhook, "_PAUSE_S", 0.0)
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    for wanted in (1, 2):
        hooks.troubles = [takes, answers(503, "full")]
        with pytest.raises(AwayError, match=r"answers 503 \(full\): it is asked again, no record is lost"):
            tables.write("q", 0, {"c": 1}, pairs(*range(4)))
        assert hooks.values == [*range(wanted)]
    hooks.troubles = [answers(503, Retry_After="7")]
    with pytest.raises(AwayError, match="answers 503"):
        tables.write("q", 0, {"c": 1}, pairs(*range(4)))
    asked = len(hooks.asked)
    with pytest.raises(AwayError, match="answers 503"):
        tables.write("q", 0, {"c": 1}, pairs(*range(4)))
    assert len(hooks.asked) == asked
    tables.close()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("3", 3.0), ("99999999999", 300.0), ("soon", 0.0), ("-1", 0.0), ("²", 0.0), ("", 0.0)],
)
def test_retry_after_is_a_number_with_a_bound(said: str, wanted: float) -> None:
    assert webhook._seconds(said) == wanted


def test_retry_after_may_be_a_date() -> None:
    assert webhook._seconds(format_datetime(datetime(2190, 1, 1, tzinfo=UTC), usegmt=True)) == 300.0
    assert webhook._seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_a_refused_record_is_a_dead_letter_and_the_others_arrive(tmp_path: Path, hooks: Hooks) -> None:
    def judge(body: list[dict[str, Any]]) -> tuple[int, str] | None:
        bad = [row["value"] for row in body if row["value"] in (3, 6)]
        return (422, f"no \x1b place for {bad}, dear s3cret-token") if bad else None

    hooks.judge = judge
    path = tmp_path / "headers"
    path.write_text("# of the plant\nAuthorization: Bearer s3cret-token\n")
    path.chmod(0o600)
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, rows_max=8, headers_file=str(path)))
    for _ in range(2):  # the second one is not in the tables again, and asks nobody
        tables.write("q", 0, {"c": 1}, pairs(*range(10)))
    tables.close()
    assert hooks.asked[0][1]["Authorization"] == "Bearer s3cret-token"
    assert sorted(hooks.values) == [0, 1, 2, 4, 5, 7, 8, 9]
    place = f"http://127.0.0.1:{hooks.server_port} answers 422 (no \\x1b place for [{{}}], dear …)"
    assert sorted(letters(tmp_path)) == [place.format("3.0"), place.format("6.0")]
    (first, _) = rows(tmp_path / "tables.sqlite", "dead_letters", {"step": "sink0"})
    assert json.loads(bytes.fromhex(first["raw"]))["value"] in (3, 6)


def test_a_conflict_that_stays_is_a_dead_letter(
    tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    hooks.troubles = [answers(409, "known")]
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url))
    tables.write("q", 0, {"c": 1}, pairs(0, 1))
    tables.close()
    assert hooks.values == [1]
    assert "answers 409 (known)" in letters(tmp_path)[0]


def test_requests_are_bounded(tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "BODY_BYTES_MAX", 200)
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, rows_max=100))
    long = {"sink0": [columns(Pair, *((n, Pair("x" * (300 if n == 3 else 1), n)) for n in range(6)))]}
    tables.write("q", 0, {"c": 1}, long)
    tables.close()
    assert hooks.values == [*range(6)]
    assert [len(body) for _, _, body in hooks.asked] == [2, 1, 1, 2]


def test_a_micro_batch_that_is_run_again_repeats_its_keys(
    tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, rows_max=2))
    with monkeypatch.context() as patched:
        patched.setattr(tables.own, "write", killed)  # between the answer and the flow's own file
        with pytest.raises(KeyboardInterrupt):
            tables.write("q", 0, {"c": 1}, pairs(*range(3)))
    again = opened(tmp_path, WebhookSink("alerts", url=hooks.url, rows_max=2))
    again.write("q", 0, {"c": 1}, pairs(2, 1, 0))  # Spark may bring them in another order
    again.close()
    keys = [key for key, _, _ in hooks.asked]
    assert keys[:2] == keys[2:]
    assert hooks.values == [0, 1, 2]


def test_a_writer_that_is_killed_loses_no_record_and_repeats_keys_alone(tmp_path: Path, hooks: Hooks) -> None:
    command = [sys.executable, "-m", "tests.sinks.hooked", str(tmp_path), hooks.url]
    for stop in (2, 7):
        hooks.troubles = [answers(503)] if stop == 2 else [lose_the_answer]
        writer = subprocess.Popen(command)
        try:
            hooks.until_more(stop)
        finally:
            writer.kill()
            writer.wait()
    subprocess.run(command, check=True, timeout=WAIT_S)
    assert hooks.values == [*range(BATCHES * ROWS)]
    assert letters(tmp_path) == []


def test_over_tls_the_certificate_must_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, tls = served_by(tmp_path / "certs", ["127.0.0.1"])
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    with receiving(tls) as hooks, caplog.at_level(logging.DEBUG):
        for ca, values in (("", (0.0,)), (str(fleet.ca), (1.0,))):
            tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, ca=ca))
            if ca:
                monkeypatch.setattr(webhook, "AWAY_S_MAX", 60.0)
                tables.write("q", 0, {"c": 1}, pairs(*values))
            else:
                with pytest.raises(AwayError, match="does not answer: its certificate is not trusted"):
                    tables.write("q", 0, {"c": 1}, pairs(*values))
            tables.close()
        assert hooks.values == [1.0]


def test_a_header_file_that_is_renewed_counts_at_once(
    tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "headers"
    path.write_text("X-Api-Key: old-value\n")
    path.chmod(0o600)
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    tables = opened(tmp_path, WebhookSink("alerts", url=hooks.url, headers_file=str(path)))
    hooks.troubles = [answers(403, "old-value is unknown")]
    with pytest.raises(AwayError, match="answers 403 \\(… is unknown\\)"):
        tables.write("q", 0, {"c": 1}, pairs(0))
    path.unlink()
    with pytest.raises(TableError, match=f"sink 'sink0': headers_file: {path} cannot be read"):
        tables.write("q", 0, {"c": 1}, pairs(0))
    path.write_text("X-Api-Key: new-value\n")
    path.chmod(0o600)
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 60.0)
    tables.write("q", 0, {"c": 1}, pairs(0))
    tables.close()
    assert [headers["X-Api-Key"] for _, headers, _ in hooks.asked] == ["old-value", "new-value"]
    assert "-value" not in caplog.text


def test_another_address_comes_with_a_revision(tmp_path: Path, hooks: Hooks) -> None:
    tables = tables_of(tmp_path, Table("own"), kind=Pair)
    tables.attach("q", "c", has_run=False)
    with pytest.raises(TableError, match="its url is no address"):
        tables.planned([Layout("new", WebhookSink("alerts", url="hooks"), derive(Pair))])
    tables.evolve([Layout("new", WebhookSink("alerts", url=hooks.url), derive(Pair))])
    tables.write("q", 0, {"c": 1}, {"new": [columns(Pair, (1, Pair("a", 1.0)))]})
    tables.close()
    assert hooks.values == [1.0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": ""}, "sink 'sink0' has no url: set url in the flow"),
        ({"url": "hooks"}, "sink 'sink0': its url is no address, such as https://hooks.example/alerts"),
        ({"url": "ftp://a/b"}, "its url is no address"),
        ({"url": "http://a:b/"}, "its url is no address"),
        ({"url": "http://[a/"}, "its url is no address"),
        ({"url": "http://a/ b"}, "its url is no address"),
        (
            {"url": "http://me:pw@a/"},
            "its url holds a name or a password, which belong into headers or a headers_file",
        ),
        ({"ca": "x.pem"}, "ca, certificate and private_key are for a url with https://"),
        ({"url": "https://a", "ca": "/no.pem"}, r"steps\.sink0\.ca: /no\.pem cannot be read"),
        ({"headers": {"X-Token": "x"}}, "headers hold X-Token: write secret:NAME in its place"),
        ({"headers": {"a b": "x"}}, "headers: header 1 has a name that cannot be one"),
        ({"headers": {"Host": "x"}}, "headers: Host is for the sink to say: leave it out"),
        ({"headers": {"X-A": "x\r\nY: z"}}, "headers: the value of X-A has characters that no header takes"),
        ({"headers_file": "/no/file"}, "headers_file: /no/file cannot be read"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(TableError, match=why):
        tables_of(tmp_path, WebhookSink("alerts", **{"url": "http://a", **options}), kind=Pair)


def test_a_header_file_is_its_owners_alone_and_no_line_of_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("s3cret")
    sink = WebhookSink("alerts", url="http://a", headers_file=str(path))
    path.chmod(0o644)
    with pytest.raises(TableError, match="can be read by others"):
        tables_of(tmp_path, sink, kind=Pair)
    path.chmod(0o600)
    with pytest.raises(TableError, match=r"line 1: write NAME: VALUE$"):
        tables_of(tmp_path, sink, kind=Pair)


def test_a_host_of_flows_gets_it_as_data() -> None:
    sink = WebhookSink("alerts", url="http://a", rows_max=5, headers={"X-A": "b"})
    assert SinkSaid.of(SinkPlace("s", sink, derive(Pair))).place().sink == sink
