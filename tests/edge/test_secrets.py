"""Secrets of a device's apps, under a real parent and a real broker: missing, unfit, changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from geartrain.adapters.system import SystemClock
from geartrain.control.states import App, AppState
from geartrain.declarations.options import Text
from geartrain.declarations.secrets import secret_name
from geartrain.errors import ConfigError, SourceError
from geartrain.runtime.opened import open_sources
from geartrain.runtime.secrets import secrets_of, with_secrets
from geartrain_edge.errors import SecretError
from geartrain_edge.sources.secrets import BYTES_MAX, FolderSecrets, Secrets
from tests.edge.device_parent import Device, Platform
from tests.edge.secretive import flow

FIRST, SECOND = "planted-7Qx2-first", "planted-9Zk4-second"


def put(device: Device, value: str, mode: int = 0o600) -> Path:
    """Write the secret as a person does: beside its place, then renamed."""
    path = device.state / "secrets" / "secretive" / "db_password"
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    draft = path.with_name(".db_password")
    draft.write_text(value + "\n")
    draft.chmod(mode)
    draft.replace(path)
    return path


def found(device: Device, *pids: int) -> list[str]:
    """Where a planted value is, but for the secrets themselves."""
    own = device.state / "secrets"
    files = [path for path in device.folder.rglob("*") if path.is_file() and own not in path.parents]
    files += [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
    assert len(files) > 5
    return [str(path) for path in files if b"planted-" in path.read_bytes()]


def has_opened(device: Device, but: int = 0) -> bool:
    """Whether a process other than `but` has opened its sources, and has read what there is."""
    status = device.status("secretive.1")
    return (
        status.get("pid") not in (None, 0, but)
        and status["state"] == "running"
        and status["records_read"] > 0
    )


def test_an_app_waits_for_its_secret_by_name_and_opens_again_with_a_new_value(device: Device) -> None:
    device.file.write_text(device.file.read_text().replace("[labels]", "isolation = true\n[labels]"))

    async def story(platform: Platform) -> None:
        platform.want(App("secretive.1", "tests.edge.secretive:flow", cut="cloud"))
        parent = device.start()
        await platform.until(lambda: platform.state("secretive.1") is AppState.STARTING)
        await platform.until(lambda: "waits for secret db_password" in platform.why("secretive.1"))
        path = put(device, FIRST, 0o644)
        await platform.until(lambda: f"run chmod 600 {path}" in platform.why("secretive.1"))
        path.chmod(0o600)
        await platform.until(lambda: has_opened(device))
        first = device.status("secretive.1")["pid"]
        assert not found(device, first, parent.pid)
        put(device, SECOND)
        await platform.until(lambda: has_opened(device, but=first))
        assert not found(device, device.status("secretive.1")["pid"], parent.pid)
        log = (device.state / "secretive.1" / "agent.log").read_text()
        assert "secret db_password has a new value" in log

    device.run(story)


def test_the_sentence_of_a_source_that_breaks_does_not_hold_the_secret(device: Device) -> None:
    async def story(platform: Platform) -> None:
        put(device, FIRST)
        options = '{"sources":{"asks":{"breaks":true}}}'
        platform.want(App("secretive.1", "tests.edge.secretive:flow", cut="cloud", options=options))
        parent = device.start()
        await platform.until(lambda: platform.state("secretive.1") is AppState.FAILED)
        assert "no login with (secret)" in platform.why("secretive.1")
        assert not found(device, parent.pid)

    device.run(story)


@pytest.mark.parametrize("name", ["", "../identity", "a/b", ".hidden", "a\0b", "ä", "a\n", "x" * 65, "a b"])
def test_a_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a secret"):
        secret_name(f"secret:{name}", "source asks: password")
    with pytest.raises(ConfigError, match=r"asks\.password = .*the name of a secret"):
        flow.graph().with_options({"asks": {"password": Text(f"secret:{name}")}})


def test_a_secret_is_for_options_of_sources_alone() -> None:
    with pytest.raises(ConfigError, match="only an option of a source, or a sink's url, can be a secret"):
        flow.graph().with_options({"digests": {"dsn": Text("secret:db")}})
    with pytest.raises(SourceError, match="there are no secrets here"):
        open_sources(flow.graph(), "truck-1")


def test_only_the_copy_that_opens_has_the_value() -> None:
    graph = flow.graph()
    assert secrets_of(graph) == ("db_password",)
    filled = with_secrets(graph, {"db_password": FIRST})
    assert FIRST in repr(vars(filled["asks"].operator.source))  # type: ignore[attr-defined]
    assert FIRST not in repr(vars(graph["asks"].operator.source))  # type: ignore[attr-defined]
    assert len(open_sources(filled, "truck-1")) == 1


def test_a_file_that_is_no_secret_is_not_taken(tmp_path: Path) -> None:
    store = FolderSecrets(tmp_path)
    for name, data, said in (
        ("empty", b"\n", "must hold"),
        ("large", b"x" * (BYTES_MAX + 1), "must hold"),
        ("binary", b"\xff\xfe", "no text"),
        ("other", b"secret:empty", "names another"),
    ):
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
        with pytest.raises(SecretError, match=said):
            store.read(name)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(SecretError):
            store.read(name)
    with pytest.raises(SecretError, match="is to be the file"):
        store.read("missing")
    (tmp_path / "good").write_text(" kept as it is \r\n")
    (tmp_path / "good").chmod(0o400)
    assert store.read("good") == " kept as it is "


@pytest.mark.parametrize("value", [FIRST, "s", "(secret)", "secret", "x" * 400])
def test_a_value_is_hidden_whole_and_cut_short(tmp_path: Path, value: str) -> None:
    (tmp_path / "db_password").write_text(value)
    (tmp_path / "db_password").chmod(0o600)
    secrets = Secrets(FolderSecrets(tmp_path), SystemClock())
    assert asyncio.run(secrets.put_into(flow.graph(), lambda _: True)) is not None
    for given in (value, value[:300]):
        error = ValueError(f"<{given}> and <{given}>")
        secrets.hide_in(error)
        assert str(error) == "<(secret)> and <(secret)>"
