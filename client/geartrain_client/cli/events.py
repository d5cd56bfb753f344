"""`gear events`: what changes on a platform, a line each, as it happens.

Guarantees: each event is a line that is written out at once. What devices have said steers no terminal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from geartrain.printable import printable
from geartrain.records.event_time import format_time
from geartrain_client.cli.tokens import since_of
from geartrain_client.rest.answers import Event
from geartrain_client.rest.following import follow
from geartrain_client.rest.platform import Platform
from geartrain_client.terminal.screen import notices


def show_events(platform: Platform, app: str | None, since: str | None, *, as_json: bool) -> None:
    """Print them until Ctrl-C: of an app alone, None for all; from a time on, None for the next one. Raises
    `GeartrainError`.
    """
    since_us = None if since is None else since_of(since, time.time())
    former = ""

    def lost(why: str) -> None:
        nonlocal former
        if why != former:
            notices().print(printable(f"{why}; gear tries again"), soft_wrap=True)
        former = why

    for event in follow(platform, app=app, since_us=since_us, lost=lost):
        former = ""
        text = json.dumps(msgspec.to_builtins(event)) if as_json else printable(line_of(event))
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def line_of(event: Event) -> str:
    """An event as a person reads it: when, of what, whose, and what holds since."""
    whose = " ".join(name for name in (event.app, event.device) if name)
    return (
        f"{format_time(event.at_us)}  {event.kind:<8}  {whose:<16}  {_said(event.kind, event.said)}".rstrip()
    )


def _said(kind: str, said: Mapping[str, Any]) -> str:
    match kind:
        case "app":
            state = "purged" if said.get("removed") else said.get("state", "")
            return _with_why(f"{state}, revision {said.get('number')}, run {said.get('run')}", said)
        case "revision":
            return f"revision {said.get('number')} is {said.get('stage')}"
        case "cut":
            waits = "devices wait for" if said.get("waits") else "devices no longer wait for the cuts of"
            return f"{waits} revision {said.get('number')}"
        case "moved" | "canary":
            return _with_why(_decided(kind, said), said)
        case "applied":
            lacks = said.get("lacks") or []
            return _with_why(
                f"{said.get('state')}" + (f", without {', '.join(lacks)}" if lacks else ""), said
            )
        case "device":
            state = (
                "retired" if said.get("retired") else f"applied {said.get('applied')} of {said.get('serial')}"
            )
            labels = said.get("labels") or {}
            return ", ".join([state, *(f"{name}={value}" for name, value in sorted(labels.items()))])
        case "contact":
            return "in contact" if said.get("online") else f"offline since {_seen(said.get('seen_us'))}"
        case "agent":
            runs = said.get("runs") or "the installed program"
            return f"runs {runs}" + (f", {said['wanted']} is wanted" if said.get("wanted") else "")
        case "secret":
            return f"{said.get('name')} was {'removed' if said.get('removed') else 'set'}"
        case "purge" | "token" | "process" | "log" | "certificate" | "backup" | "key" | "bundle":
            perhaps = ", perhaps" if said.get("perhaps") else ""
            return _said_of_platform(kind, said) + perhaps
        case "missed":
            return "older events are gone: see gear list and gear device ls"
    return json.dumps(said, ensure_ascii=False)


def _decided(kind: str, said: Mapping[str, Any]) -> str:
    """What control has decided of devices by what is known of them."""
    if kind == "moved":
        return f"{said.get('before')} to {said.get('cut')}"
    return f"revision {said.get('number')} on {said.get('selector')} {said.get('stage')}"


def _with_why(text: str, said: Mapping[str, Any]) -> str:
    return f"{text}: {said['why']}" if said.get("why") else text


def _seen(seen_us: Any) -> str:
    return format_time(seen_us) if isinstance(seen_us, int) and seen_us else "ever"


def _said_of_platform(kind: str, said: Mapping[str, Any]) -> str:
    """What an event says that is of no app."""
    if kind == "purge":
        return f"erasing what it sent, asked for by {said.get('asked_by')}: {said.get('step')}"
    if kind == "process":
        return f"process {said.get('process')} is {said.get('state')}, restarts: {said.get('restarts')}"
    if kind == "log":
        return f"the log: {said.get('what')}"
    if kind == "certificate":
        whose = f" {said.get('kind')} {said.get('name')}" if said.get("kind") else ""
        return f"certificates: {said.get('what')}{whose}"
    if kind == "key":
        trusted = "trusted with bundles" if said.get("trusted") else "trusted no more"
        return f"key {said.get('id', '')[:12]} of {said.get('author')} is {trusted}"
    if kind == "bundle":
        which = f"program {said.get('program')}" if said.get("program") else "bundle"
        return f"{which} {said.get('code', '')[:12]} {'is gone' if said.get('removed') else 'was signed'}"
    if kind == "backup":
        return f"backup {said.get('name')} is {said.get('state')}"
    end = "is gone" if said.get("removed") else f"was made by {said.get('made_by')}"
    return f"token {said.get('name')} ({said.get('role')}) {end}"
