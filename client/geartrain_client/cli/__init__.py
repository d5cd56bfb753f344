"""`gear`: the command by which a person runs, cuts and checks flows.

Guarantees: the exit code says how a command ended. 0: done; 1: failed; 2: a wrong use or setting; 3: too many
dead letters, or an input without one record; 130: stopped by Ctrl-C; 143: stopped by SIGTERM. A user's
mistake is one sentence on stderr and never a stack trace. Colours appear only on a terminal.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence

from geartrain.errors import (
    ConfigError,
    FlowError,
    GeartrainError,
    MistakeError,
    NoRecordError,
    PlacementError,
    SchemaError,
    SourceError,
)
from geartrain.printable import printable
from geartrain_client.errors import DeadLettersError, StoppedError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEAD_LETTERS = 3
_SIGNALLED = 128

_GARBAGE_THRESHOLD = 10_000
"""New objects between two searches for garbage. With Python's 700 `gear run` would search several times a
batch of records, which makes little garbage.
"""

MISTAKES = (ConfigError, FlowError, MistakeError, PlacementError, SchemaError, SourceError)
"""What only the user can put right: another file, flow, option or folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gear` with these arguments (default: the command line's); the exit code."""
    gc.set_threshold(_GARBAGE_THRESHOLD)
    from geartrain_client.cli.app import app
    from geartrain_client.cli.usage import USAGE_ERROR, asks_for_help, sentence_of

    try:
        code = app(
            list(arguments) if arguments is not None else None, prog_name="gear", standalone_mode=False
        )
    except USAGE_ERROR as error:
        if asks_for_help(error):
            error.show()
        else:
            _say(sentence_of(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except StoppedError as error:
        _say(str(error))
        return _SIGNALLED + error.received
    except GeartrainError as error:
        _say(str(error))
        return _code(error)
    except BrokenPipeError:
        return EXIT_FAILED  # whoever read our output has gone
    return code if isinstance(code, int) else EXIT_OK


def _code(error: GeartrainError) -> int:
    if isinstance(error, DeadLettersError | NoRecordError):
        return EXIT_DEAD_LETTERS
    return EXIT_USAGE if isinstance(error, MISTAKES) else EXIT_FAILED


def _say(sentence: str) -> None:
    lines = sentence.splitlines()
    sys.stderr.write("gear: " + "\n".join(map(printable, lines)) + "\n")
