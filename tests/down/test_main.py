"""`gear-downlink` as a program: its mistakes are one sentence, and one sender is enough."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from geartrain_cloud.downlink.main import main


def config(folder: Path, *lines: str) -> list[str]:
    path = folder / "down.toml"
    path.write_text("\n".join(('flow = "loop"', 'outbox = "outbox.sqlite"', 'state = "down"', *lines)) + "\n")
    return ["--config", str(path)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("windows = 3", "windows"),
        ('broker = "nowhere"', "nowhere"),
        ("resend_ms = 40000", "resend_ms is larger than resend_ms_max: make it smaller"),
        ("window = 0", "window"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    assert main(config(tmp_path, line)) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"gear-downlink: {tmp_path}/down.toml")
    assert said in sentence


def test_a_second_sender_of_one_outbox_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = os.open(tmp_path / "outbox.sqlite.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert main(config(tmp_path)) == 1
    os.close(lock)
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.endswith("one is enough, end that one")


def test_a_file_that_is_no_outbox_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outbox.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 40)
    assert main(config(tmp_path)) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "is damaged, or not a file of ours" in sentence
