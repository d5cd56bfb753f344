"""`gear-downlink` as a program: a mistake in its file is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain_cloud.downlink.main import main


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('broker = "nowhere"', "nowhere"),
        ('flow = "loop"\noutbox = "outbox.sqlite"\nstate = "down"', "flow"),  # one outbox without a platform
        ("resend_ms = 500", "resend_ms"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, said: str
) -> None:
    path = tmp_path / "platform.toml"
    path.write_text(f"{lines}\n")
    assert main(["--config", str(path)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"gear-downlink: {path}")
    assert said in sentence
