"""`gear up`: all processes of a platform in the foreground, until a signal ends them or a work is done.

Around every record's path. Guarantees: no process's end is that of another. What dies is started again and
goes on where it was. After a kill -9 of anything, `gear up` itself among it, the next one goes on. When it
returns, no process is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from geartrain.adapters.service_notes import ServiceNotes
from geartrain.adapters.temporary import loading_folder
from geartrain.adapters.tls import BrokerTable, parse_broker
from geartrain.errors import ConfigError
from geartrain_client.errors import StoppedError
from geartrain_cloud.broker import BrokerChoice, choose_broker, wait_until_ready
from geartrain_cloud.broker.ready import is_free
from geartrain_cloud.errors import FullDiskError
from geartrain_cloud.platform.config import BROKERS, PlatformConfig
from geartrain_cloud.platform.door import ControlDoor, port_of, read_door
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.supervisor.child import Child, ChildSpec, ChildState
from geartrain_cloud.supervisor.folder_lock import FolderLock
from geartrain_cloud.supervisor.named_ports import check_ports
from geartrain_cloud.supervisor.platform import BROKER, CONTROL, Processes
from geartrain_cloud.supervisor.supervise import StopSignal, Supervisor
from geartrain_cloud.system_user import check_system_user

BROKER_READY_S = 30.0
TURN_S = 0.2
GRACE_S = 15.0
DOWN_S = 60.0
"""How long `gear down` waits for the processes of a platform to end."""

Say = Callable[[str], None]
Work = Callable[[str, Mapping[str, Child]], bool]
"""Called in each turn with control's URL, empty while it does not answer, and the processes: is it done?"""


def bring_up(
    config: PlatformConfig, stop: StopSignal, say: Say, work: Work, beside: Sequence[ChildSpec] = ()
) -> None:
    """Run the platform until `work` is done; `say` gets a sentence for whatever happens.

    beside: what else runs so long. Raises what `work` raises, and `StoppedError` when a
    signal came before it was done. Raises `StateError` when another platform runs in the folder, and
    `ConfigError` or `BrokerError` when there is no broker. Raises `PortError` for a port of the configuration
    that cannot be had. Raises `MistakeError` for a user as whom Spark cannot start, and where no temporary
    file can be written, or no library loaded from it.
    """
    check_system_user()
    loading_folder()
    notes = ServiceNotes()
    with FolderLock(config.state), Supervisor(config.state, grace_s=GRACE_S) as supervisor:
        check_ports(config)
        broker = platform_broker(config)
        processes = Processes(config, broker)
        processes.write_broker()
        _start_broker(config, broker, processes, supervisor, stop, say)
        notes.ready()
        full, known = "", ControlDoor("", 0)
        while True:
            door = _control_door(config.places, supervisor)
            if door is not None and door != known:
                known = door
                _tell_taken(door, say)
            if work("" if door is None else door.url, supervisor.children):
                return
            notes.alive()
            stop.wait(TURN_S)
            if stop.received is not None:
                notes.stopping()
                raise StoppedError(stop.received)
            former, full = full, _turn(supervisor, processes, beside)
            if full and not former:
                say(f"{full}. The platform goes on as it can")
            _tell(supervisor, say)


def _turn(supervisor: Supervisor, processes: Processes, beside: Sequence[ChildSpec]) -> str:
    """One round of the processes; what a full disk keeps it from, empty where there was room."""
    try:
        supervisor.check()
        supervisor.follow([*processes.all(), *beside])
    except FullDiskError as error:
        return str(error)
    return ""


def _tell(supervisor: Supervisor, say: Say) -> None:
    for happened in supervisor.happenings:
        say(happened)
    supervisor.happenings.clear()


def _control_door(places: PlatformPlaces, supervisor: Supervisor) -> ControlDoor | None:
    """Where the control that runs now answers; None while it does not."""
    door, child = read_door(places), supervisor.children.get(CONTROL)
    is_its = door is not None and child is not None and door.pid == child.pid
    return door if is_its else None


def _tell_taken(door: ControlDoor, say: Say) -> None:
    """Say which ports control has not got, so that nobody looks for the platform there."""
    if not door.taken:
        return
    ports = " and ".join(str(port) for port in door.taken)
    which = f"port {ports} is" if len(door.taken) == 1 else f"ports {ports} are"
    say(
        f"{which} taken by another program, so control listens on {door.port} instead: gear finds it by the "
        "state folder; [control] port in platform.toml gives it a port of your choice"
    )


def platform_broker(config: PlatformConfig) -> BrokerChoice:
    """The broker of a platform: one that is started keeps its port from one `gear up` to the next.

    Raises `ConfigError` and `BrokerError`.
    """
    if isinstance(config.broker, BrokerTable):
        raise ConfigError(
            f"{config.path}: broker: gear up wants the address of a broker and its broker_certs: write "
            f'broker = "{config.broker.address}" and broker_certs = the folder of gear certs'
        )
    folder = config.state / "broker"
    if config.is_open and config.broker in BROKERS:
        from geartrain_cloud.broker.open_broker import open_broker  # only who has a fleet needs cryptography

        return open_broker(config, folder)
    if config.broker not in BROKERS:
        return choose_broker(config.broker, folder, config.broker_certs)
    return choose_broker(
        config.broker, folder, config.broker_certs, config.broker_port or _former_port(config)
    )


def _former_port(config: PlatformConfig) -> int:
    """The port of the broker before, if it is still free; else 0."""
    known = port_of(str(read_report(config.places.broker).get("address", "")))
    return known if known and is_free(known) else 0


def _start_broker(
    config: PlatformConfig,
    broker: BrokerChoice,
    processes: Processes,
    supervisor: Supervisor,
    stop: StopSignal,
    say: Say,
) -> None:
    supervisor.follow(processes.first())

    def look() -> str | None:
        supervisor.check()
        _tell(supervisor, say)
        if stop.received is not None:
            raise StoppedError(stop.received)
        child = supervisor.children.get(BROKER)
        return child.why if child is not None and child.state is ChildState.FAILED else None

    context = parse_broker(broker.of_cloud("ingest"), Path(config.state)).tls_context
    wait_until_ready(broker.host, broker.port, timeout_s=BROKER_READY_S, gone=look, context=context)
    say(f"broker {broker.kind} answers at {broker.address}")
