"""What the programs of an app's devices have to be able to do, as they say themselves.

Asked as an app comes to devices, or goes over to another revision there. A platform may be of a later version
than the agents of its devices, which then lack what that version has added. Guarantees: an app that needs it
does not come to such a device, and the refusal names the device and what to do. One that was never heard is
taken to be able to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from geartrain.control.codec import decode_reported
from geartrain.printable import printable
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.store import ControlStore

NEEDED: Mapping[str, str] = {}
"""By ability, in words what an agent that does not say it cannot do. Each agent of this version can all."""
_VERSION_CHARS_MAX = 40


def check_able(store: ControlStore, devices: Iterable[str]) -> None:
    """Raise `ConflictError` for a device whose program has not said that it can do all that is needed."""
    for name in devices if NEEDED else ():
        said = store.reports.last(name)
        report = decode_reported(said) if said else None
        lacks = [words for ability, words in NEEDED.items() if report and ability not in report.can]
        if report is not None and lacks:
            version = printable(report.program, _VERSION_CHARS_MAX) or "unknown"
            raise ConflictError(
                f"device {name} runs an agent of version {version}, which {lacks[0]}: upgrade it with gear "
                "agent upgrade, or leave it out"
            )
