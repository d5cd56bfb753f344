"""`python -m geartrain_cloud.inspecting.main`: whether a log is whole, found by a short-lived process.

Between REST and the log. It reads the log's folder as JSON on stdin, and writes `{"answer"}` or `{"refused"}`
to stdout. Guarantees: nothing is written, and a refusal is one sentence.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from geartrain.errors import GeartrainError
from geartrain_cloud.inspecting.entries import verified

QUESTION_BYTES_MAX = 1 << 16


def main() -> int:
    """Answer the question on stdin; the exit code is 0 where there is an answer, a refusal too."""
    folder = msgspec.json.decode(sys.stdin.buffer.read(QUESTION_BYTES_MAX), type=str)
    try:
        said: dict[str, Any] = {"answer": verified(Path(folder))}
    except GeartrainError as error:
        said = {"refused": " ".join(str(error).split())}
    sys.stdout.buffer.write(msgspec.json.encode(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
