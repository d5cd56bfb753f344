"""What splits want to find again after a restart: their notes, in the spool beside their positions.

Between the reading of sources and the agent's commit. Guarantees: a note is durable in the transaction that
holds the rows of its read, so that notes and rows never tell different stories. Notes of a source that has
left the flow are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from geartrain.errors import SourceError

NOTES = "_notes"
"""Under this name a spool keeps the notes; no step's id begins with `_`."""
NOTES_MAX = 100_000
"""Of one split."""

Split = tuple[str, str]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, str, bytes]).decode


class Notes:
    """The notes of all splits of one agent."""

    def __init__(self) -> None:
        self._held: dict[Split, dict[bytes, bytes]] = {}
        self._changes: dict[tuple[str, bytes], bytes | None] = {}

    def restore(self, state: Mapping[tuple[str, bytes], bytes], sources: Collection[str]) -> None:
        """Hold what a former life noted; sources: the source steps that there are."""
        for (step, at), value in state.items():
            if step != NOTES:
                continue
            source, split, key = _decode(at)
            if source in sources:
                self._held.setdefault((source, split), {})[key] = value
            else:
                self._changes[NOTES, at] = None

    def of(self, split: Split) -> Mapping[bytes, bytes]:
        """The notes of a split."""
        return self._held.get(split, {})

    def hold_notes(self, split: Split, notes: Mapping[bytes, bytes | None]) -> None:
        """Hold what a read has noted; raises `SourceError` for more notes than a split may have."""
        held = self._held.setdefault(split, {})
        for key, value in notes.items():
            if value is None:
                held.pop(key, None)
            else:
                held[key] = value
            self._changes[NOTES, _encode((*split, key))] = value
        if len(held) > NOTES_MAX:
            raise SourceError(
                f"source {split[0]}, split {split[1]}: it has more than {NOTES_MAX:,} notes: have it forget "
                "the oldest"
            )

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """What the next commit has to write of them."""
        changes, self._changes = self._changes, {}
        return changes
