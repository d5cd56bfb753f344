"""Faults planted in the control lane: applied before it is kept, twice, late, or never told again."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.concurrency.many_senders import SenderGroup
from geartrain.control.codec import decode_desired
from geartrain.control.receiver import Apply, DesiredReceiver
from geartrain.control.sender import Cloned, DesiredSender, Store
from geartrain.control.states import Kept, State
from geartrain.errors import WireError
from geartrain_cloud.control.lane import ControlLane
from geartrain_edge.parent.apps import Apps
from geartrain_edge.parent.lane import DeviceLane
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.lane_fleet import ClonedDevice, LaneFleet, RestoredDevice, RestoredStore


def _run(seed: int) -> object:
    return LaneFleet(seed).run()


def _away(seed: int) -> object:
    return LaneFleet(seed, 1, away_s=3_600.0).run()


def _restored_store(seed: int) -> object:
    return RestoredStore(seed).run()


def _restored_device(seed: int) -> object:
    return RestoredDevice(seed).run()


def _cloned_device(seed: int) -> object:
    return ClonedDevice(seed).run()


def _applied_before_kept(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def keep(lane: DeviceLane, event: Any) -> None:
            lane._machine.kept(lane._clock.monotonic_s())
            while isinstance(one := lane._machine.next_event(), Apply):
                lane._told.apply(one.state)
                lane._machine.applied(lane._clock.monotonic_s())
            await lane._store.save(event.kept)

        return keep

    patches.replace(DeviceLane, "_keep", make)


def _lower_serial_taken(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def take(machine: DesiredReceiver, state: State, data: bytes, now_s: float) -> None:
            if state.serial < machine._durable.state.serial:
                machine._events.append(Apply(state))
            else:
                right(machine, state, data, now_s)

        return take

    patches.replace(DesiredReceiver, "_take_state", make)


def _applied_twice(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def take(machine: DesiredReceiver, state: State, data: bytes, now_s: float) -> None:
            if state.serial == machine._applied[0]:
                machine._events.append(Apply(state))
            right(machine, state, data, now_s)

        return take

    patches.replace(DesiredReceiver, "_take_state", make)


def _session_not_looked_at(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def receive(machine: DesiredReceiver, payload: bytes, now_s: float) -> None:
            try:
                machine._session = decode_desired(payload).session or machine._session
            except WireError:
                return
            right(machine, payload, now_s)

        return receive

    patches.replace(DesiredReceiver, "receive", make)


def _serial_forgotten(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def init(machine: DesiredReceiver, device: str, kept: Kept, *rest: Any) -> None:
            right(machine, device, Kept(kept.life), *rest)

        return init

    patches.replace(DesiredReceiver, "__init__", make)


def _answered_before_stored(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def do(lane: ControlLane, device: str) -> None:
            sender = lane._senders[device]
            for event in list(sender._events):
                if isinstance(event, Store):
                    sender.stored(event.report, lane._clock.monotonic_s())
            lane._wake(device)
            await lane._clock.sleep(0.1)
            await right(lane, device)

        return do

    patches.replace(ControlLane, "_do", make)


def _older_report_taken(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def take(sender: DesiredSender, report: Any, now_s: float) -> None:
            if report.order < sender._known:
                sender._events.append(Store(report))
            right(sender, report, now_s)

        return take

    patches.replace(DesiredSender, "_take", make)


def _restored_store_not_refused(patches: Patches) -> None:
    patches.replace(DesiredSender, "_refuse", lambda right: lambda sender, why: None)


def _state_sent_once(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def due(sender: DesiredSender, now_s: float) -> bool:
            return bool(right(sender, now_s)) and sender._send_pause_s <= sender._policy.resend_s

        return due

    patches.replace(DesiredSender, "_is_due", make)


def _report_sent_once(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def timer(machine: DesiredReceiver) -> float | None:
            return right(machine) if machine._is_changed else None

        return timer

    patches.replace(DesiredReceiver, "timer", make)


def _life_not_renewed(patches: Patches) -> None:
    patches.replace(DesiredReceiver, "_take_answer", lambda right: lambda machine, desired: None)


def _not_listened_again(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def never(lane: Any, connection: Any) -> None:
            """It subscribes once, and a broker that has forgotten it is not asked again."""

        return never

    patches.replace(SenderGroup, "_listen_again", make)


def _process_not_awaited(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def stop(apps: Apps, app: Any, process: Any) -> None:
            if process.ended() is None:
                process.terminate()

        return stop

    patches.replace(Apps, "_stop", make)


def _apps_end_without_control(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def lost(lane: Any, error: Any) -> None:
            lane._told._apps.apply(State(0))  # as if what nobody confirms were not wanted
            right(lane, error)

        return lost

    patches.replace(DeviceLane, "_lost", make)


def _clones_not_compared(patches: Patches) -> None:
    patches.replace(DesiredSender, "_compare", lambda right: lambda sender, session: None)


def _connections_taken_for_clones(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def compare(sender: DesiredSender, session: bytes) -> None:
            if sender._connections and session != sender._connections[-1]:
                sender._events.append(Cloned())
            right(sender, session)

        return compare

    patches.replace(DesiredSender, "_compare", make)


def _lacks_not_said(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda apps: tuple(replace(one, lacks=()) for one in right(apps))

    patches.replace(Apps, "reports", make)


def _program_not_said(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda machine: replace(right(machine), program_code="")

    patches.replace(DesiredReceiver, "_report", make)


def _program_why_not_said(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def changed(
            machine: DesiredReceiver, apps: Any, now_s: float, program_why: str = "", *, went_back: bool
        ) -> None:
            right(machine, apps, now_s, "", went_back=went_back)

        return changed

    patches.replace(DesiredReceiver, "changed", make)


def _program_back_not_said(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda machine: replace(right(machine), program_went_back=False)

    patches.replace(DesiredReceiver, "_report", make)


def _secrets_not_said(patches: Patches) -> None:
    patches.replace(DesiredReceiver, "holds", lambda right: lambda machine, *said: None)


def _secrets_of_before(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def take(machine: DesiredReceiver, state: State, data: bytes, now_s: float) -> None:
            right(machine, replace(state, secrets=machine._durable.state.secrets), data, now_s)

        return take

    patches.replace(DesiredReceiver, "_take_state", make)


OF_LANES = [
    Mutant("desired state applied before it is kept", _applied_before_kept, _run),
    Mutant("lower serial applied", _lower_serial_taken, _run),
    Mutant("desired state applied twice", _applied_twice, _run),
    Mutant("desired state of another connection applied", _session_not_looked_at, _restored_device),
    Mutant("serial forgotten at a start", _serial_forgotten, _away),
    Mutant("report answered before it is stored", _answered_before_stored, _run),
    Mutant("older report taken for a newer one", _older_report_taken, _run),
    Mutant("restored control store not refused", _restored_store_not_refused, _restored_store),
    Mutant("desired state sent once", _state_sent_once, _run),
    Mutant("report sent once", _report_sent_once, _run),
    Mutant("life not renewed after a restore", _life_not_renewed, _restored_device),
    Mutant("control lane subscribes once", _not_listened_again, _run),
    Mutant("process of an app not awaited", _process_not_awaited, _run),
    Mutant("apps end when control is gone", _apps_end_without_control, _away),
    Mutant("two devices of one name not found", _clones_not_compared, _cloned_device),
    Mutant("new connection taken for another device", _connections_taken_for_clones, _run),
    Mutant("sources that a device lacks not said", _lacks_not_said, _run),
    Mutant("program that runs not said", _program_not_said, _run),
    Mutant("program that cannot run not said", _program_why_not_said, _run),
    Mutant("program that went back not said", _program_back_not_said, _run),
    Mutant("secrets that a device has not said", _secrets_not_said, _run),
    Mutant("secrets of the desired state before kept", _secrets_of_before, _run),
]
