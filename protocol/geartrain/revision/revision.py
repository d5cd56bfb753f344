"""The revision: an immutable document of what an instance runs, with a hash of its canonical JSON.

It stands beside the record's path: with a submit, in an agent's spool, and beside a query's checkpoint.
Guarantees: equal documents have equal hashes, in whatever process they are made. What is read is bounded and
checked. It holds no path, no password and no time.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import ConfigError
from geartrain.graph.graph import Tier
from geartrain.revision.code import Code
from geartrain.schema import Note, Schema

FORMAT = 1
BYTES_MAX = 4 << 20
"""Of a revision as JSON."""

Text = Annotated[str, msgspec.Meta(max_length=1 << 20)]


class StepForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step: what it is, and the types on which its state and its readers rest.

    kind: of its operator; inputs: the ids of the steps that it reads, each with `:` and its grouping where
    that is not `forward`; tier: where it stands; record: the schema of its records, "" for a sink; key: what
    its records are keyed by, "" for nothing; state: the type of what it keeps for a key, where it names one;
    migrates: the former types of that, which it can make into this one;
    options: what was set otherwise than by default, paths left out.
    """

    id: Text
    kind: Text
    inputs: tuple[Text, ...]
    tier: Tier
    record: Text = ""
    key: Text = ""
    state: Text = ""
    options: dict[str, Any] = {}
    migrates: tuple[Text, ...] = ()


class ChannelForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel: the schema of its records, the sources above it, and whether it goes up or down. upgrades:
    the layouts of former types of its records, of which it can make such.
    """

    id: Text
    schema: Text
    sources: tuple[Text, ...]
    down: bool = False
    generation: int = 0
    upgrades: tuple[Text, ...] = ()

    def takes(self, schema: str) -> bool:
        """Whether rows of a schema can be read as this channel's records."""
        if schema == self.schema:
            return True
        layout = Schema.from_json(schema).layout
        return layout == Schema.from_json(self.schema).layout or layout in self.upgrades


class SourceForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source: its class, and what the steps below it and ingest rest on.

    devices: which of the app's devices have it, as a selector, "" for all.
    """

    id: Text
    source: Text
    bounded: bool
    in_order: bool
    since_1970: bool
    partitioned_by: Text = ""
    devices: Text = ""


class Revision(msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """What an instance runs.

    flow: `module:name`, "" for a graph that was made by hand; cut: the steps on the devices; settings: those
    of the submit, by step id; code: the files of the flow; geartrain, python: the versions that made it;
    notes: by step and field, the unit and description of what it puts out.
    """

    format: int = FORMAT
    flow: Text
    steps: tuple[StepForm, ...]
    channels: tuple[ChannelForm, ...]
    sources: tuple[SourceForm, ...]
    cut: tuple[Text, ...]
    settings: dict[str, dict[str, Any]] = {}
    code: Code = Code()
    geartrain: Text = ""
    python: Text = ""
    notes: dict[Text, dict[Text, Note]] = {}

    def to_json(self) -> str:
        """The canonical text: keys sorted, ASCII, no spaces."""
        import json  # msgspec keeps non-ASCII characters; a text that is hashed has one form

        whole = msgspec.to_builtins(self)
        if not self.notes:  # the text, and with it the hash, of one without these is what it always was
            del whole["notes"]
        for name, several in (("migrates", whole["steps"]), ("upgrades", whole["channels"])):
            for one in several:
                if not one[name]:
                    del one[name]
        return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @cached_property
    def hash(self) -> str:
        """64 hexadecimal digits: sha256 of `to_json()`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str | bytes) -> Revision:
        """Read what `to_json` wrote; raises `ConfigError` for anything else (it may come from elsewhere)."""
        if len(text) > BYTES_MAX:
            raise ConfigError(f"a revision of {len(text)} bytes is not read: it has at most {BYTES_MAX}")
        try:
            read = msgspec.json.decode(text, type=Revision)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ConfigError(f"a revision cannot be read: {error}") from None
        if read.format != FORMAT:
            raise ConfigError(
                f"a revision of form {read.format} cannot be read, this release writes {FORMAT}: use the "
                "release that wrote it"
            )
        return read

    def on(self, tier: Tier) -> Revision:
        """The part that concerns one tier: its own steps, and all channels, sources and files."""
        return replace(self, steps=tuple(step for step in self.steps if step.tier == tier))
