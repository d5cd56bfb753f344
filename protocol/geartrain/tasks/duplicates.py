"""The task behind `distinct`: of records that are alike within a key, the first passes, as it is.

Below `geartrain.flow`, run by `geartrain.operators.process` as a task of the user's is. Guarantees: it keeps
one event time for each kind of record that came within the time to live, and forgets it within another one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, ClassVar

import msgspec

from geartrain.declarations.task import Context, Task
from geartrain.records.record import State

_DIGEST_BYTES = 16


class Seen(State):
    """What a key has seen.

    Args:
        last_us: when records came last, microseconds since 1970 UTC, by the digest of what makes them alike.
        swept_us: when those were last forgotten whose time to live has passed.
    """

    last_us: dict[str, int] = msgspec.field(default_factory=dict)
    swept_us: int = 0


class DropDuplicates(Task[Any, Any]):
    """Emits a record unless one of its key and with equal `fields` came less than `ttl_us` before it."""

    state: ClassVar[type[Seen]] = Seen
    fields: tuple[str, ...] = ()
    ttl_us: int = 0

    def on_next(self, value: Any, ctx: Context[Any, Seen]) -> None:
        """Emit the first of its kind."""
        seen, now_us = ctx.state, ctx.event_time
        if now_us >= seen.swept_us + self.ttl_us:  # seldom, so that a record costs the same however many came
            seen.last_us = {kind: last for kind, last in seen.last_us.items() if now_us < last + self.ttl_us}
            seen.swept_us = now_us
        values = msgspec.msgpack.encode([getattr(value, name) for name in self.fields])
        kind = blake2b(values, digest_size=_DIGEST_BYTES).hexdigest()
        last_us = seen.last_us.get(kind)
        if last_us is None or now_us >= last_us + self.ttl_us:
            ctx.emit(value)
        seen.last_us[kind] = now_us
