"""The errors of the protocol package: one root, one class per kind of mistake, each message says what to
do.
"""

from __future__ import annotations

from typing import Final

USER_ERRORS: Final = (Exception, SystemExit)
"""What a call of a user's function may raise: whatever it is, it is the end of that call and not of the
process. `sys.exit()` in a function is such an end, too; Ctrl-C is not.
"""


class GeartrainError(Exception):
    """Root of every error that Geartrain raises on purpose; its text is one sentence meant for a person."""


class MistakeError(GeartrainError):
    """What only the user can put right: another file, folder or option. `gear` ends with 2."""


class FlowError(GeartrainError):
    """A flow or graph that is not well formed: a missing or doubled step id, a wrong input, a wrong
    option.
    """


class SchemaError(GeartrainError):
    """A type that cannot be a record, a key or a state."""


class SelectorError(GeartrainError):
    """The name of a device, a label or a selector that cannot be."""


class PlacementError(GeartrainError):
    """A cut that breaks a rule: names the step, the rule and the fix."""


class StepError(GeartrainError):
    """A step that cannot go on, though no single record is to blame: names the step; stops the run."""


class QuestionError(GeartrainError):
    """A question for the state of a key that cannot be answered: names the step."""


class WireError(GeartrainError):
    """Bytes that are not a batch of ours, or that exceed a cap; decoding arbitrary bytes raises nothing
    else.
    """


class WireVersionError(WireError):
    """A batch of another version of the wire, so of a program that orders records otherwise."""


class BundleError(GeartrainError):
    """Bytes that are no bundle of a flow's code, that exceed a cap, or that cannot run here."""


class SpoolError(GeartrainError):
    """The agent's durable store cannot be used: full, damaged, locked, or of another device."""


class LedgerError(GeartrainError):
    """The cloud's ledger or log cannot be used: damaged, locked, or fenced by a newer ingest."""


class FencedError(LedgerError):
    """Another ingest has taken partitions of the log from this one, which must stop."""


class NetError(GeartrainError):
    """The connection to the broker failed or was refused; retried with backoff by the callers."""

    def __init__(self, text: str, reason: str = "") -> None:
        """`reason`: what stays the same where the text does not."""
        super().__init__(text)
        self.reason = reason or text


class DeniedError(NetError):
    """The broker is there and does not accept this client, or it the broker: a person has to see to that."""


class HungUpError(NetError):
    """The broker took the connection and closed it before it was of use: it restarts, or refuses unsaid."""


class TakenOverError(NetError):
    """The broker ends each session soon after it has begun: another client probably has the same id."""


class DiskError(GeartrainError):
    """A file could not be written, made durable or read; names the file."""


class SourceError(GeartrainError):
    """A source cannot be opened or read at all (a single bad row is a dead letter instead)."""


class NoRecordError(SourceError):
    """A source has rows, and none of them is a record: names the file, and the first row's reason."""


class ConfigError(GeartrainError):
    """A configuration file or option is wrong: names the file and the key."""
