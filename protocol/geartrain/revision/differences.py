"""What two revisions differ in, as sentences in the words of the flow.

Read by people, before a change is made or where it is refused. Guarantees: no sentence means that the steps,
their types and options, the channels, the sources and the code are the same. Versions of Geartrain and
Python, settings that no step shows, and units and descriptions of fields are no differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.revision.code import Code
from geartrain.revision.revision import ChannelForm, Revision, SourceForm, StepForm

SHOWN_MAX = 3
"""Differences that one sentence tells; the others are counted."""
MENDED_CHARS = 12
"""Digits of a code's hash that name it."""
_CHARS_MAX = 120
_PLACES = {"edge": "on the devices", "cloud": "in the cloud"}


def differences(old: Revision, new: Revision) -> list[str]:
    """A clause for each difference, without a full stop: `step totals: its state type was int, is now
    float`.
    """
    found: list[str] = []
    if old.flow != new.flow and old.flow and new.flow:
        found.append(f"the flow was {old.flow}, is now {new.flow}")
    steps = {s.id: s for s in old.steps}, {s.id: s for s in new.steps}
    found += _members("step", steps, step_clauses)
    channels = {c.id: c for c in old.channels}, {c.id: c for c in new.channels}
    found += _members("channel", channels, channel_clauses)
    found += _members("source", ({s.id: s for s in old.sources}, {s.id: s for s in new.sources}), _source)
    if old.code.files and new.code.files:
        found += file_clauses(old.code.files, new.code.files)
    return found


def is_mended(old: Revision, new: Revision, code: str) -> bool:
    """Whether only files differ, and a person has said that these may: `code` begins the hash of the new
    ones, with `MENDED_CHARS` digits or more.
    """
    return is_named(new.code, code) and not differences(replace(old, code=new.code), new)


def is_named(code: Code, begin: str) -> bool:
    """Whether a person means this code: `begin` begins its hash, with `MENDED_CHARS` digits or more."""
    return len(begin) >= MENDED_CHARS and code.hash.startswith(begin)


def way_on(old: Revision, new: Revision) -> str:
    """What to write to go on with changed files, as a part of a sentence; "" where more has changed."""
    if differences(replace(old, code=new.code), new):
        return ""
    return (
        f'; or, to go on with the changed files, write mended = "{new.code.hash[:MENDED_CHARS]}" in its file'
    )


def in_short(found: Sequence[str]) -> str:
    """The first differences as a part of a sentence, and how many more there are."""
    more = len(found) - SHOWN_MAX
    shown = "; ".join(found[:SHOWN_MAX])
    return f"{shown}; and {more} more" if more > 0 else shown


def _members(what: str, both: tuple[dict[str, Any], dict[str, Any]], compare: Any) -> Iterator[str]:
    """What is gone, what is new, and how the others differ, each in the order of its revision."""
    old, new = both
    yield from (f"{what} {name} is gone" for name in old if name not in new)
    for name, now in new.items():
        if name not in old:
            yield f"{what} {name} is new"
        else:
            yield from (f"{what} {name}: {clause}" for clause in compare(old[name], now))


def step_clauses(old: StepForm, new: StepForm) -> Iterator[str]:
    """How two steps of one id differ, a clause each."""
    if old.kind != new.kind:
        yield f"it was a {old.kind}, is now a {new.kind}"
    if old.inputs != new.inputs:
        yield f"it read {_listed(old.inputs)}, now reads {_listed(new.inputs)}"
    if old.tier != new.tier:
        yield f"it stood {_PLACES[old.tier]}, stands now {_PLACES[new.tier]}"
    if old.record != new.record:
        yield f"its records {_records(old.record, new.record)}"
    if old.key != new.key:
        yield f"its key was {_shown(old.key or None)}, is now {_shown(new.key or None)}"
    if old.state != new.state:
        yield f"its state type was {_shown(old.state or None)}, is now {_shown(new.state or None)}"
    if old.kind == new.kind:
        for name in sorted(old.options.keys() | new.options.keys()):
            was, now = old.options.get(name), new.options.get(name)
            if was != now:
                yield f"its option {name} was {_set(was)}, is now {_set(now)}"


def channel_clauses(old: ChannelForm, new: ChannelForm) -> Iterator[str]:
    """How two channels of one id differ, a clause each."""
    if old.schema != new.schema:
        yield f"its records {_records(old.schema, new.schema)}"
    if old.sources != new.sources:
        yield f"it came from {_listed(old.sources)}, now comes from {_listed(new.sources)}"
    if old.down != new.down:
        yield "it goes the other way now"
    if old.generation != new.generation:
        yield f"its generation was {old.generation}, is now {new.generation}"


def _source(old: SourceForm, new: SourceForm) -> Iterator[str]:
    if old.source != new.source:
        yield f"it was a {old.source}, is now a {new.source}"
    for name, said in (
        ("bounded", "it comes to an end"),
        ("in_order", "its records come in the order of time"),
        ("since_1970", "it has no records before 1970"),
    ):
        if getattr(old, name) != getattr(new, name):
            was, now = ("yes", "no") if getattr(old, name) else ("no", "yes")
            yield f"whether {said} was {was}, is now {now}"
    if old.partitioned_by != new.partitioned_by:
        was, now = old.partitioned_by or "no field", new.partitioned_by or "none"
        yield f"it was partitioned by {was}, is now by {now}"
    if old.devices != new.devices:
        yield f"its devices were {old.devices or 'all'}, are now {new.devices or 'all'}"


def file_clauses(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    """Which files differ, by their hashes, a clause each."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            what = "is gone" if name not in new else "is new" if name not in old else "has changed"
            yield f"file {name} {what}"


def _records(old: str, new: str) -> str:
    """How two record types differ: the first field that does, where both are schemas."""
    was, now = record_fields(old), record_fields(new)
    if was and now:
        for name in dict.fromkeys((*was, *now)):
            if name not in now:
                return f"had a field {name}, now have none"
            if name not in was:
                return f"had no field {name}, now have one"
            if was[name] != now[name]:
                return f"had {name} as {was[name]}, now have it as {now[name]}"
        if list(was) != list(now):
            return f"had the fields {_listed(tuple(was))}, now {_listed(tuple(now))}"
        return f"were {_name(old)}, are now {_name(new)}"
    return f"were {_shown(old or None)}, are now {_shown(new or None)}"


def record_fields(schema: str) -> dict[str, str]:
    """The type of each field of a schema; nothing for what is none."""
    try:
        fields = msgspec.json.decode(schema)["fields"]
        return {str(f[0]): f"{f[3] if len(f) > 3 else f[1]}{' or None' if f[2] else ''}" for f in fields}
    except (ValueError, KeyError, TypeError, IndexError, msgspec.MsgspecError):
        return {}


def _name(schema: str) -> str:
    return str(msgspec.json.decode(schema).get("name"))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _set(value: Any) -> str:
    return "not set" if value is None else _shown(value)


def _shown(value: Any) -> str:
    text = (
        "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 3]}..."
