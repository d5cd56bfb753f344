"""One run of a deployment from start to end: broker, ingest, driver and agents, until all is in the tables.

It stands around the record's path. Guarantees: it returns only when every agent has finished and the driver
has brought everything to the tables. However it ends, no process is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from geartrain.adapters.tls import parse_broker
from geartrain_client.errors import StoppedError
from geartrain_cloud.broker import BrokerChoice, choose_broker, wait_until_ready
from geartrain_cloud.errors import SupervisorError
from geartrain_cloud.supervisor.child import ChildSpec
from geartrain_cloud.supervisor.deployment import INGEST, Deployment, Places, broker_spec, write_deployment
from geartrain_cloud.supervisor.progress import Accounts, Hops, read_accounts, read_hops
from geartrain_cloud.supervisor.supervise import StopSignal, Supervisor

BROKER_READY_S = 20.0
TURN_S = 0.1
SHOW_TURNS = 5

Show = Callable[[Hops, list[str]], None]
"""Called a few times a second with the progress and what has happened since the last call."""


def run_to_the_end(
    deployment: Deployment,
    places: Places,
    broker: str,
    stop: StopSignal,
    show: Show,
    beside: Sequence[ChildSpec] = (),
    certs: Path | None = None,
) -> list[Accounts]:
    """Run until everything is in the tables; the accounts of the run. beside: what else runs so long; certs:
    the certificates of a fleet whose broker runs at `broker`.

    Raises `StoppedError` when a signal came, `ConfigError` when a process refuses what it is told,
    `BrokerError` and `SupervisorError`; and `SupervisorError` when the accounts do not come out even.
    """
    choice = choose_broker(broker, places.folder / "broker", certs)
    with Supervisor(places.folder) as supervisor:
        specs = write_deployment(deployment, choice, places)
        _start_broker(supervisor, choice, places, stop)
        for spec in (*beside, *specs):
            supervisor.start(spec)
        _watch(supervisor, deployment, places, stop, show)
    flow = deployment.plan().graph.name
    accounts = read_accounts(places, flow, deployment.devices)
    if uneven := [one for one in accounts if not one.is_even]:
        first = uneven[0]
        raise SupervisorError(
            f"{first.place}: {first.before:,} rows went in and {first.after:,} came out, so the results are "
            f"not to be trusted: keep {places.folder} and its logs to find out why"
        )
    return accounts


def _start_broker(supervisor: Supervisor, choice: BrokerChoice, places: Places, stop: StopSignal) -> None:
    if choice.command:
        supervisor.start(broker_spec(choice, places))

    def look() -> str | None:
        supervisor.check()
        _check_stopped(stop)
        return None

    context = parse_broker(choice.of_cloud(INGEST), places.folder).tls_context
    wait_until_ready(choice.host, choice.port, timeout_s=BROKER_READY_S, gone=look, context=context)


def _watch(
    supervisor: Supervisor, deployment: Deployment, places: Places, stop: StopSignal, show: Show
) -> None:
    flow, turn = deployment.plan().graph.name, 0
    while not supervisor.is_done():
        supervisor.check()
        if turn % SHOW_TURNS == 0:
            happened, supervisor.happenings[:] = list(supervisor.happenings), []
            show(read_hops(places, flow, deployment.devices), happened)
        turn += 1
        stop.wait(TURN_S)
        _check_stopped(stop)
    # Ingest writes its status last of all, so it ends before the accounts are read.
    supervisor.stop()
    show(read_hops(places, flow, deployment.devices), list(supervisor.happenings))


def _check_stopped(stop: StopSignal) -> None:
    if stop.received is not None:
        raise StoppedError(stop.received)
