"""`gear secret`: values go to the platform, and never come back.

Guarantees: a value comes from standard input, a file, or a terminal that does not show it. It is in no
argument, and is not printed, also where something goes wrong.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

from geartrain.control.sealed import SPARK_PROCESS, VALUE_BYTES_MAX
from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain.records.event_time import format_time
from geartrain_client.cli.waiting import wait_for
from geartrain_client.errors import FailedError
from geartrain_client.rest.answers import Secret, answer_as
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of

DEVICES_NAMED_MAX = 5


def read_value(name: str, file: Path | None) -> str:
    """The value of a secret out of `file`, else from a terminal or standard input; raises `ConfigError`."""
    if file is None and sys.stdin.isatty():
        return getpass.getpass(f"value of {printable(name, 80)} (not shown): ")
    source = "standard input" if file is None else f"--file {file}"
    try:
        if file is None:
            data = sys.stdin.buffer.read(VALUE_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(VALUE_BYTES_MAX + 1)
        value = data.decode()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is no text in UTF-8") from None
    if not value.strip("\r\n") or len(data) > VALUE_BYTES_MAX:
        raise ConfigError(f"{source} must hold the value, 1 to {VALUE_BYTES_MAX:,} bytes")
    return value


def set_secret(
    platform: Platform, app: str, name: str, value: str, wait_s: float | None = None, *, as_json: bool
) -> None:
    """Give a secret its value.

    wait_s: how long to wait until each device that is to have it has it, seconds; None for not at all. Raises
    `GeartrainError`.
    """
    answer = platform.change("PUT", f"/apps/{segment(app)}/secrets/{segment(name)}", {"value": value})
    if wait_s is not None:
        made = answer_as(Secret, answer)

        def standing() -> str:
            nonlocal answer
            answer = _found(platform, made)
            return _lacks(answer_as(Secret, answer))

        wait_for(f"secret {made.name} of app {made.app}", standing, f"gear secret ls {made.app}", wait_s)
    if as_json:
        print_json(answer)
        return
    made = answer_as(Secret, answer)
    said = f"secret {made.name} of app {made.app} has version {made.version}"
    if wait_s is not None:
        told = f"{_holders(made)} {'has' if made.wanted == 1 else 'have'} it"
    elif made.wanted:
        told = f"it goes to {_holders(made)}: gear secret ls {made.app} shows which have it"
    else:
        told = f"no device runs {made.app} now; those that will do get it"
    results().print(printable(f"{said}; {told}"), soft_wrap=True)


def list_secrets(platform: Platform, app: str, *, as_json: bool) -> None:
    """Print every secret, or those of `app`, without values; raises `GeartrainError`."""
    found = list(platform.items("/secrets", app=app) if app else platform.items("/secrets"))
    if as_json:
        print_json(found)
        return
    if not found:
        whose = f"app {printable(app, 80)} has" if app else "there is"
        results().print(f"{whose} no secret: gear secret set APP NAME", soft_wrap=True)
        return
    secrets = [answer_as(Secret, item) for item in found]
    lines = [
        [
            one.app,
            one.name,
            str(one.version),
            format_time(one.set_us),
            f"applied by {one.applied} of {_holders(one)}",
        ]
        for one in secrets
    ]
    results().print(table_of("", ["app", "secret", "version", "set", "devices"], lines))
    for one in secrets:
        for line in _lacking(one):
            notices().print(printable(line), soft_wrap=True)


def remove_secret(platform: Platform, app: str, name: str, *, as_json: bool) -> None:
    """Remove a secret; raises `GeartrainError`."""
    answer = platform.change("POST", f"/apps/{segment(app)}/secrets/{segment(name)}/remove", {})
    if as_json:
        print_json(answer)
        return
    said = f"secret {name} of app {app} is removed, and goes from devices when they hear of it"
    results().print(printable(said), soft_wrap=True)


def _found(platform: Platform, made: Secret) -> Any:
    """The secret as the platform lists it now; raises `FailedError` where it is of another version."""
    for one in platform.items("/secrets", app=made.app):
        if isinstance(one, dict) and one.get("name") == made.name:
            if one.get("version") == made.version:
                return one
            raise FailedError(f"secret {made.name} of app {made.app} was set anew meanwhile")
    raise FailedError(f"secret {made.name} of app {made.app} was removed meanwhile")


def _lacks(one: Secret) -> str:
    """Who has it not, and why; "" where all have it."""
    left = one.wanted - one.applied
    if not left:
        return ""
    first = next((f": {has.device}: {has.why}" for has in one.devices if has.version != one.version), "")
    return printable(f"{left} of {_holders(one)} {'has' if left == 1 else 'have'} it not{first}")


def _holders(one: Secret) -> str:
    """Who is to have it."""
    if all(has.device != SPARK_PROCESS for has in one.devices):
        return _devices(one.wanted)
    return f"{_devices(one.wanted - 1)} and the Spark host" if one.wanted > 1 else "the Spark host"


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _lacking(one: Secret) -> list[str]:
    """A line for each of the first devices that have not the newest version."""
    lacking = [has for has in one.devices if has.version != one.version]
    lines = [
        f"{one.app} {one.name}: {has.device} has {has.version or 'none'}: {has.why}"
        for has in lacking[:DEVICES_NAMED_MAX]
    ]
    more = one.wanted - one.applied - len(lines)
    return [*lines, f"{one.app} {one.name}: and {_devices(more)} more"] if more > 0 else lines
