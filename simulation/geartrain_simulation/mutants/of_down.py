"""Faults planted in the way down: acked or sent before a commit, applied twice, files not cut off."""

# ruff: noqa: SLF001 - a fault is planted inside
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from geartrain.errors import WireError
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain.wire.envelope import BatchKind
from geartrain_edge.downlink.applying import Arrival
from geartrain_edge.downlink.receiver import Receiver
from geartrain_edge.sinks.delivering import Deliveries
from geartrain_simulation.fleet.down_fleet import DownFleet
from geartrain_simulation.mutants.planting import Mutant, Patches
from geartrain_simulation.stores.outboxes import OutboxBook


def _run(seed: int) -> object:
    return DownFleet(seed).run()


def _ack_before_commit(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def apply(receiver: Receiver, arrival: Any, fragment: Any) -> int:
            rows: int = right(receiver, arrival, fragment)
            receiver._applied.durable = receiver._applied.place
            receiver._say_where()
            return rows

        return apply

    patches.replace(Receiver, "apply", make)


def _no_dedup(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def hear(receiver: Receiver, payload: bytes) -> None:
            try:
                envelope = decode_envelope(payload)
                header = decode_header(envelope.header)
            except WireError:
                return
            again = header.epoch == receiver._epoch and 0 < header.seq <= receiver._seq
            if again and header.kind is BatchKind.DATA and header.count:
                last = msgspec.structs.replace(header, seq=receiver._seq)
                receiver._queue.append(Arrival(last, envelope, receiver._digest))
                receiver.arrived.set()
            right(receiver, payload)

        return hear

    patches.replace(Receiver, "hear", make)


def _send_before_commit(patches: Patches) -> None:
    def visible(right: Any) -> Any:
        return lambda book, device: [*right(book, device), *book.staged.get(device, [])]

    def lane(right: Any) -> Any:
        def seen(book: OutboxBook, device: str) -> Any:
            staged = book.staged.get(device)
            found = right(book, device)
            return found if not staged else replace(found, last_seq=staged[-1].seq)

        return seen

    patches.replace(OutboxBook, "visible", visible)
    patches.replace(OutboxBook, "lane", lane)


def _length_not_kept(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def prepare(deliveries: Deliveries) -> None:
            for way in deliveries._ways.values():
                way.length = -1  # as if the spool had not said how long the file is
            await right(deliveries)

        return prepare

    patches.replace(Deliveries, "prepare", make)


MUTANTS = [
    Mutant("down acked before commit", _ack_before_commit, _run),
    Mutant("down applied twice", _no_dedup, _run),
    Mutant("down sent before commit", _send_before_commit, _run),
    Mutant("file not cut off", _length_not_kept, _run),
]
