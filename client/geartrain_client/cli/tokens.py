"""`gear token` and `gear audit`: who may drive a platform, and who has changed what there.

Guarantees: a token is printed once, or is written to a file with mode 0600 that was not there before. What
others have sent is shown as text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import printable
from geartrain.records.event_time import format_time, parse_time
from geartrain_client.rest.answers import AuditEntry, MadeToken, Token, answer_as
from geartrain_client.rest.door import TOKEN_FILE
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of
from geartrain_client.terminal.settings import parse_seconds


@dataclass(frozen=True, slots=True)
class NewToken:
    """What `gear token add` asks for. app: the only one that it is for, "" for the whole platform; expires_s:
    how long it is good, seconds; output: a file for it.
    """

    name: str
    role: str
    app: str
    expires_s: float
    output: Path | None = None


def add_token(platform: Platform, wanted: NewToken, *, as_json: bool) -> None:
    """Make a token and give it out, once; raises `GeartrainError`."""
    output = wanted.output
    if output is not None and output.exists():
        raise ConfigError(f"--output {output} is there already: name another file, or remove that one")
    body = {"name": wanted.name, "role": wanted.role, "app": wanted.app, "expires_s": wanted.expires_s}
    answer = platform.change("POST", "/tokens", body)
    made = answer_as(MadeToken, answer)
    said = f"token {made.name}: {made.role} of {_reach(made)}, until {format_time(made.expires_us)}"
    if output is not None:
        try:
            write_private(output, made.token + "\n")
        except OSError as error:
            platform.change("POST", f"/tokens/{segment(made.name)}/revoke", {})
            raise ConfigError(
                f"--output {output} cannot be written ({error.strerror or error}): the token was revoked"
            ) from None
        notices().print(printable(f"{said}; name the file with {TOKEN_FILE}"), soft_wrap=True)
    if as_json:
        shown = answer if output is None else {**answer, "token": None}
        print_json(shown)
    elif output is None:
        notices().print(printable(f"{said}; keep it now, nobody can see it again"), soft_wrap=True)
        results().print(printable(made.token), soft_wrap=True)


def list_tokens(platform: Platform, *, as_json: bool) -> None:
    """Print every token, without what it is; raises `GeartrainError`."""
    found = list(platform.items("/tokens"))
    if as_json:
        print_json(found)
        return
    if not found:
        results().print(
            "there is no token but that of the platform's machine: gear token add NAME --role ROLE"
        )
        return
    now_us = time.time() * 1e6
    lines = []
    for one in (answer_as(Token, item) for item in found):
        until = format_time(one.expires_us) + (" (expired)" if one.expires_us <= now_us else "")
        used = format_time(one.used_us) if one.used_us else "never"
        made = format_time(one.made_us)
        lines.append([one.name, one.role, one.app or "all", until, used, one.made_by, made])
    results().print(table_of("", ["token", "role", "app", "until", "last used", "made by", "made"], lines))


def revoke_token(platform: Platform, name: str, *, as_json: bool) -> None:
    """Have a token be good for nothing; raises `GeartrainError`."""
    answer = platform.change("POST", f"/tokens/{segment(name)}/revoke", {})
    if as_json:
        print_json(answer)
        return
    results().print(printable(f"token {name} is good for nothing any more"), soft_wrap=True)


def show_audit(platform: Platform, since: str, limit: int, *, as_json: bool) -> None:
    """Print the newest entries of the audit log that are not before `since`; raises `GeartrainError`."""
    found = list(islice(platform.items("/audit", since_us=since_of(since, time.time())), limit))
    if as_json:
        print_json(found)
        return
    if not found:
        results().print(f"nobody has asked for a change since {since}: see --since")
        return
    lines = [
        [
            format_time(one.time_us),
            one.token,
            f"{one.method} {one.path}".strip(),
            _asked(one.asked),
            f"{one.status} {one.result}" if one.status else "not known",
            one.address,
        ]
        for one in (answer_as(AuditEntry, item) for item in found)
    ]
    results().print(table_of("", ["time", "token", "request", "asked", "result", "from"], lines))
    if len(found) == limit:
        results().print("there may be older ones: --limit shows more")


def since_of(text: str, now_s: float) -> int:
    """The time that `--since` means, microseconds since 1970: a length of time before `now_s`, or a time.

    Raises `ConfigError`.

    >>> since_of("1970-01-01T00:00:01Z", 0.0)
    1000000
    """
    try:
        return round((now_s - parse_seconds("--since", text)) * 1e6)
    except ConfigError:
        pass
    try:
        return parse_time(text)
    except (GeartrainError, ValueError):
        raise ConfigError(
            f"--since {printable(text, 80)}: write a length of time such as 12h or 7d, or a time such as "
            "2026-11-01 or 2026-11-01T08:00:00Z"
        ) from None


def _reach(token: Token) -> str:
    return f"app {token.app}" if token.app else "all apps"


def _asked(asked: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in asked.items()
    )
