"""`gear device`: the devices that a platform knows.

Guarantees: what a device's file holds is written 0600 where a file is named, and a file that is there is not
replaced. Names and labels of others are shown as text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.files import write_private
from geartrain.adapters.toml_text import to_toml
from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain.records.event_time import format_time
from geartrain_client.cli.spans import span_words
from geartrain_client.errors import FailedError
from geartrain_client.rest.answers import Join, answer_as
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of

PROGRAM_CHARS = 8
"""Of the hash of a program, as it is shown."""


def parse_labels(given: Iterable[str], *, may_go: bool = False) -> dict[str, str | None]:
    """Labels of `KEY=VALUE`; with `may_go`, `KEY-` is None, which takes the label away.

    Raises `ConfigError` for another form.

    >>> parse_labels(["kind=truck"])
    {'kind': 'truck'}
    """
    found: dict[str, str | None] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if may_go and not equals and key.endswith("-") and len(key) > 1:
            found[key[:-1]] = None
        elif key and equals:
            found[key] = value
        else:
            also = ", or KEY- to take it away" if may_go else ""
            raise ConfigError(f"label {printable(text, 80)!r}: write KEY=VALUE, such as kind=truck{also}")
    return found


@dataclass(frozen=True, slots=True)
class NewDevice:
    """What `gear device add` asks for. output: a file for what is given out; as_file: the device's file
    instead of what it joins by; local: the platform's own machine runs it; expires_s: how long a token is
    good, seconds.
    """

    name: str
    labels: Mapping[str, str | None]
    output: Path | None = None
    as_file: bool = False
    local: bool = False
    expires_s: float = 86_400.0


def add_device(platform: Platform, wanted: NewDevice, *, as_json: bool) -> None:
    """Add a device, and give out the line by which it joins, or its file where it cannot join or that was
    asked for; raises `GeartrainError`.
    """
    name, output = wanted.name, wanted.output
    if output is not None and output.exists():
        raise ConfigError(f"--output {output} is there already: name another file, or remove that one")
    body = {"name": name, "labels": dict(wanted.labels), **({"local": True} if wanted.local else {})}
    answer = platform.change("POST", "/devices", body)
    content = answer.get("file") if isinstance(answer, dict) else None
    joins = isinstance(answer, dict) and bool(answer.get("joins"))
    if joins and not wanted.as_file:
        join = ask_join(platform, name, wanted.expires_s)
        _give_out(f"added {name}", join, output, answer if as_json else None)
        return
    text = _file_text(content)
    if output is not None:
        _write(output, text)
    if as_json:
        print_json(answer)
        return
    if wanted.local:
        results().print(printable(f"added {name}: gear up runs it on its own machine"), soft_wrap=True)
    elif output is not None:
        results().print(
            printable(f"added {name}: copy {output} there and start gear-agent --device {output.name}"),
            soft_wrap=True,
        )
    else:
        notices().print(
            printable(f"added {name}: save this as a file there (mode 0600), then gear-agent --device FILE"),
            soft_wrap=True,
        )
        results().print(printable(text, keep="\n").rstrip("\n"), soft_wrap=True)


def ask_join(platform: Platform, name: str, expires_s: float) -> Join:
    """What a device joins with: a new token, in the place of any before; raises `GeartrainError`."""
    answer = platform.change("POST", f"/devices/{segment(name)}/token", {"expires_s": expires_s})
    return answer_as(Join, answer)


def show_join_line(
    platform: Platform, name: str, expires_s: float, output: Path | None, *, as_json: bool
) -> None:
    """Give out a new line by which a device joins; raises `GeartrainError`."""
    if output is not None and output.exists():
        raise ConfigError(f"--output {output} is there already: name another file, or remove that one")
    join = ask_join(platform, name, expires_s)
    _give_out(f"no token of {name} before this one is good", join, output, {} if as_json else None)


def _give_out(said: str, join: Join, output: Path | None, answer: Mapping[str, Any] | None) -> None:
    """Print what a device joins by, with the rest of the platform's answer where JSON is wanted, or have it
    in a file and in none of a terminal's.
    """
    until = format_time(join.expires_us)
    if output is not None:
        held = {"url": join.url, "token": join.token, "ca_fingerprint": join.ca_fingerprint}
        _write(output, to_toml(held))
        then = f"gear-agent join --from {output.name} on the device, or gear flash --join {output}"
        notices().print(printable(f"{said}: {then}, before {until}"), soft_wrap=True)
        return
    if answer is not None:
        print_json({**answer, "join": msgspec.structs.asdict(join)})
        return
    notices().print(printable(f"{said}: run this there once, before {until}"), soft_wrap=True)
    line = f"gear-agent join {join.url} {join.token} --ca-fingerprint {join.ca_fingerprint}"
    results().print(printable(line), soft_wrap=True)


def _write(output: Path, text: str) -> None:
    try:
        write_private(output, text)
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be written: {error.strerror}") from None


def revoke_device(platform: Platform, name: str, *, as_json: bool) -> None:
    """End the certificates of a device; raises `GeartrainError`."""
    found = platform.change("POST", f"/devices/{segment(name)}/revoke", {})
    if as_json:
        print_json(found)
        return
    count = found.get("revoked") if isinstance(found, dict) else None
    said = f"revoked {count} of {name}" if count else f"{name} has no certificate that is good"
    broker = str(found.get("broker", "")) if isinstance(found, dict) else ""
    results().print(
        printable(f"{said}; gear device token {name} lets it join anew{'; ' if broker else ''}{broker}"),
        soft_wrap=True,
    )


def list_devices(platform: Platform, selector: str | None, *, as_json: bool) -> None:
    """Print the devices that a selector means; raises `GeartrainError`."""
    found = list(platform.items("/devices", label=selector))
    if as_json:
        print_json(found)
        return
    if not found:
        results().print(
            "no device was added yet: gear device add NAME" if selector is None else "no device fits"
        )
        return
    lines = [
        [
            _text(one, "name"),
            _labels(one.get("labels")),
            _state(one),
            f"{_text(one, 'applied')}/{_text(one, 'serial')}",
            ago(one.get("seen_us"), time.time()),
            certificate_of(one, time.time()),
        ]
        for one in found
        if isinstance(one, dict)
    ]
    heads = ["device", "labels", "state", "applied", "in contact", "certificate"]
    if not any(line[-1] for line in lines):
        heads, lines = heads[:-1], [line[:-1] for line in lines]
    results().print(table_of("", heads, lines, numbers=(3,)))
    for one in found:
        if isinstance(one, dict) and isinstance(clones := one.get("clones"), str) and clones:
            results().print(printable(f"alarm: {clones}"), soft_wrap=True)


def certificate_of(one: Mapping[str, Any], now_s: float) -> str:
    """How long a device's certificate is good still, or that it may join; empty where it needs none."""
    until_us, joins_us = one.get("certificate_until_us"), one.get("joins_until_us")
    if isinstance(until_us, int):
        return f"{span_words(max(0.0, until_us / 1e6 - now_s))} left"
    if isinstance(joins_us, int):
        return f"joins within {span_words(max(0.0, joins_us / 1e6 - now_s))}"
    return "none" if "certificate_until_us" in one and not one.get("local") else ""


def show_device(platform: Platform, name: str, *, as_json: bool) -> None:
    """Print all that is known of a device; raises `GeartrainError`."""
    found = platform.get(f"/devices/{segment(name)}")
    if as_json or not isinstance(found, dict):
        print_json(found)
        return
    _print_device(found)


def label_device(platform: Platform, name: str, labels: Mapping[str, str | None], *, as_json: bool) -> None:
    """Set and take away labels of a device; raises `GeartrainError`."""
    found = platform.change("PATCH", f"/devices/{segment(name)}", {"labels": dict(labels)})
    if as_json or not isinstance(found, dict):
        print_json(found)
        return
    kept, sources = found.pop("kept", None), found.pop("sources", None)
    _print_device(found)
    for app in kept if isinstance(kept, list) else ():
        if isinstance(app, dict):
            results().print(
                printable(
                    f"{name} keeps app {_text(app, 'name')}, though {_text(app, 'selector')} matches it no "
                    "longer: it runs there until the app is killed or the device retired"
                ),
                soft_wrap=True,
            )

    for one in sources if isinstance(sources, list) else ():
        if isinstance(one, dict):
            goes_on, now = ("keeps", "no longer") if one.get("has") else ("goes on without", "now")
            sentence = (
                f"{name} {goes_on} source {_text(one, 'source')} of app {_text(one, 'name')}, though it "
                f"{now} matches the selector: that cannot change amid the app, so kill it and submit it again"
            )
            results().print(printable(sentence), soft_wrap=True)


def retire_device(platform: Platform, name: str, *, as_json: bool) -> None:
    """Retire a device: it holds no clock any more; raises `GeartrainError`."""
    found = platform.change("POST", f"/devices/{segment(name)}/retire", {})
    if as_json:
        print_json(found)
        return
    results().print(
        printable(f"{name} is retired: it holds no clock, and what its spool still holds is not taken"),
        soft_wrap=True,
    )


def accept_device(platform: Platform, name: str, *, as_json: bool) -> None:
    """Have a refused device take what the platform wants of it now; raises `GeartrainError`."""
    found = platform.change("POST", f"/devices/{segment(name)}/accept", {})
    if as_json:
        print_json(found)
        return
    results().print(
        printable(f"{name} will take what the platform wants of it now: see gear device show {name}"),
        soft_wrap=True,
    )


def _file_text(content: Any) -> str:
    try:
        return to_toml(content)
    except (AttributeError, TypeError):
        raise FailedError(
            "the platform sent no file for the device: is it of another version than gear?"
        ) from None


def ago(seen_us: Any, now_s: float) -> str:
    """How long ago a time of contact was, in seconds, minutes, hours or days."""
    if not isinstance(seen_us, int) or seen_us <= 0:
        return "never"
    return f"{span_words(max(0, now_s - seen_us / 1e6))} ago"


def _print_device(found: Mapping[str, Any]) -> None:
    out = results()
    for name, value in found.items():
        if name == "labels":
            text = _labels(value)
        elif name == "agent" and isinstance(value, dict):
            text = agent_of(value)
        elif name.endswith("_us") and isinstance(value, int):
            text = format_time(value) if value > 0 else "never"
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if text not in ("", "null", "[]", "{}"):
            out.print(printable(f"{name.removesuffix('_us').replace('_', ' ')}: {text}"), soft_wrap=True)


def agent_of(agent: Mapping[str, Any]) -> str:
    """Which program a device runs, and which it is to run, in a line."""
    runs, wanted = _program(agent, "version", "program"), _program(agent, "wanted_version", "wanted")
    if not runs and not wanted:
        return ""
    why = f" ({_text(agent, 'why')})" if agent.get("why") else ""
    return f"{runs or 'not known'}; {wanted} is wanted: {_text(agent, 'state')}{why}" if wanted else runs


def _program(agent: Mapping[str, Any], version: str, program: str) -> str:
    """A program as people read it: its version, and the beginning of its hash; an installed one has none."""
    return f"{_text(agent, version)} {_text(agent, program)[:PROGRAM_CHARS]}".strip()


def _state(one: Mapping[str, Any]) -> str:
    if one.get("retired"):
        return "retired"
    online = one.get("online")
    return "" if online is None else "online" if online else "offline"


def _labels(labels: Any) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) if isinstance(labels, dict) else ""


def _text(one: Mapping[str, Any], name: str) -> str:
    value = one.get(name)
    return "" if value is None else str(value)
