"""`python -m geartrain_cloud.backup.main`: a backup that control has asked for, in a process of its own.

Between control and the making of backups. It reads one line of JSON, the question, and writes one for each
step, and one at the end. Guarantees: it ends when control does, and then leaves at most a draft. A refusal is
one sentence.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from geartrain.errors import GeartrainError
from geartrain_cloud.backup.writing import back_up

STEP_S = 0.5
"""Between two steps that are told."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state folder, and what is to be made."""

    state: str
    output: str


def main() -> int:
    """Answer the question on stdin; the exit code is 0 where there is an answer, a refusal too."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Question)
    threading.Thread(target=_end_with_control, daemon=True).start()
    told_s = -STEP_S

    def tell(doing: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= STEP_S:
            told_s = time.monotonic()
            _say({"doing": doing})

    try:
        made = back_up(Path(asked.state), Path(asked.output), lambda: time.time_ns() // 1_000, tell)
    except GeartrainError as error:
        _say({"refused": " ".join(str(error).split())})
        return 0
    found = {"made_us": made.made_us, "files": made.files, "bytes": made.size}
    _say({"made": {**found, "elsewhere": list(made.elsewhere)}})
    return 0


def _say(said: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_control() -> None:
    """Control keeps the other end of stdin open for as long as it lives."""
    while os.read(sys.stdin.fileno(), 1_024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
