"""Faults planted in the downlink: acked or sent before a commit, applied twice, files not cut off."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from geartrain.delivery.receiver import Arrival, Next, Receiver
from geartrain.delivery.sender import Sender
from geartrain.errors import WireError
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain.wire.envelope import Ack, BatchKind
from geartrain_cloud.downlink.downlink import Downlink
from geartrain_cloud.downlink.sender import OutboxSender
from geartrain_edge.downlink.receiver import DownReceiver
from geartrain_edge.sinks.delivering import Deliveries
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.down_fleet import DownFleet
from geartrain_simulation.stores.outboxes import OutboxBook


def _run(seed: int) -> object:
    return DownFleet(seed).run()


def _ack_before_commit(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def apply(receiver: DownReceiver, arrival: Any, fragment: Any) -> int:
            rows: int = right(receiver, arrival, fragment)
            receiver._applied.durable = receiver._applied.place
            receiver._say_where()
            return rows

        return apply

    patches.replace(DownReceiver, "apply", make)


def _no_dedup(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def hear(receiver: DownReceiver, payload: bytes) -> None:
            try:
                envelope = decode_envelope(payload)
                header = decode_header(envelope.header)
            except WireError:
                return
            order = receiver._order
            again = header.epoch == order.epoch and 0 < header.seq <= order.seq
            if again and header.kind is BatchKind.DATA and header.count:
                last = msgspec.structs.replace(header, seq=order.seq, digest_after=order.digest)
                receiver._queue.append(Arrival(last, envelope, payload))
                receiver.arrived.set()
            right(receiver, payload)

        return hear

    patches.replace(DownReceiver, "hear", make)


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


def restored_outbox(seed: int) -> int:
    """A run in which the outbox goes back to a backup, at a moment when every batch in it is acked; returns
    the crashes.
    """
    fleet = DownFleet(seed)
    book, world, kept = fleet.outbox, fleet.world, dict[str, Any]()

    def is_quiet() -> bool:
        return bool(book.lanes) and all(lane.acked_seq == lane.last_seq for lane in book.lanes.values())

    def back_up() -> None:
        if is_quiet():
            kept.update(book.lanes)
            world.later(0.1, restore)
        else:
            world.later(0.05, back_up)

    def restore() -> None:
        sender = world.nodes["sender"]
        is_due = is_quiet() and not book.staged and book.lanes != kept and set(book.lanes) == set(kept)
        if not is_due or sender.finished.done():
            world.later(0.05, restore)
            return
        book.lanes, book.held = dict(kept), {device: {} for device in kept}
        book.version += 1
        sender.crash(power=False)

    world.later(0.5, back_up)
    return fleet.run()


def _trim_without_digest_check(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def compared(sender: Sender, ack: Any, seq: int, digest: bytes, now_s: float) -> None:
            right(sender, msgspec.structs.replace(ack, digest=digest), seq, digest, now_s)

        return compared

    patches.replace(Sender, "compared", make)


def _trim_on_puback(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def _send_batch(outbox: OutboxSender, connection: Any, device: str, sending: Any) -> bool:
            went, sender = await right(outbox, connection, device, sending), outbox._senders[device]
            seq, now_s = sending.after_seq + 1, outbox._clock.monotonic_s()
            if went and seq > sender.acked_seq:
                sender._take_ack(Ack(outbox._flow, sender.epoch, seq, sender.digest_at(seq), 0), now_s)
                event: Any = sender.next_event()
                await outbox._do(device, sender, event)
            return bool(went)

        return _send_batch

    patches.replace(OutboxSender, "_send_batch", make)


def _taken_out_of_order(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def receive_batch(order: Receiver, arrival: Any) -> None:
            if arrival.header.seq > order.expected:
                order._say_next(Next(arrival))
            else:
                right(order, arrival)

        return receive_batch

    patches.replace(Receiver, "receive_batch", make)


def _outbox_of_another_app(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def send(downlink: Downlink, app: Any) -> None:
            others = [other for name, other in downlink._wanted.items() if name != app.name]
            if others:
                app.outbox = others[0]
            await right(downlink, app)

        return send

    patches.replace(Downlink, "_send", make)


OF_DOWN = [
    Mutant("down outbox of another app", _outbox_of_another_app, _run),
    Mutant("down taken out of order", _taken_out_of_order, _run),
    Mutant("down trimmed without digest check", _trim_without_digest_check, restored_outbox),
    Mutant("down trimmed on puback", _trim_on_puback, _run),
    Mutant("down acked before commit", _ack_before_commit, _run),
    Mutant("down applied twice", _no_dedup, _run),
    Mutant("down sent before commit", _send_before_commit, _run),
    Mutant("file not cut off", _length_not_kept, _run),
]
