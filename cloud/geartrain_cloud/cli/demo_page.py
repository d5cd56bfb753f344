"""The page of a demo: beside a run, as a process of its own, and after it, until Ctrl-C.

After the end of the record's path: it only reads tables. The supervisor starts it as
`python -m geartrain_cloud.cli.demo_page STATE PORT`. Guarantees: SIGTERM and SIGINT end it, and it waits
until there are tables.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from geartrain.errors import GeartrainError
from geartrain_client.planning.drawing import draw
from geartrain_client.terminal.screen import results
from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.cli.demo_folder import Manifest, read_manifest
from geartrain_cloud.cli.demos import app_of, begun_options, load_demo
from geartrain_cloud.cli.hops import served_tables
from geartrain_cloud.cli.move_report import move_file
from geartrain_cloud.control.hosting import HostReport, read_hosted
from geartrain_cloud.control.observing import told_skew
from geartrain_cloud.control.server import rest_context
from geartrain_cloud.errors import StateError
from geartrain_cloud.pages.server import PORT_PREFERRED, Report, serve
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.supervisor.child import ChildSpec


def free_port() -> int:
    """8765, or any free one where that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, PORT_PREFERRED))
        except OSError:
            probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def page_spec(places: PlatformPlaces, port: int) -> ChildSpec:
    """The page as a process beside a run."""
    command = (sys.executable, "-m", "geartrain_cloud.cli.demo_page", str(places.folder), str(port))
    return ChildSpec("page", command, places.process_log("page"))


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a page listens: None as port for any, a file with a token where others reach it."""

    host: str = LOOPBACK
    port: int | None = None
    token_file: Path | None = None


async def show_page(
    manifest: Manifest, places: PlatformPlaces, announce: Callable[[str], None], at: Listening = Listening()
) -> None:
    """Serve the page until SIGTERM or SIGINT, over HTTPS where the platform's REST is; `announce` gets its
    address. Raises `PageError`, `ConfigError` and `CertificateError`.
    """
    context = rest_context(read_platform(None, places.folder))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    demo = load_demo(manifest.demo)
    app = app_of(demo, manifest)
    plan = app.plan()
    page = demo.page(plan, draw(plan), begun_options(demo, manifest))
    tables = served_tables(places, app.instance)
    reports: dict[str, Report] = {"skew": partial(skew_of, places, app.instance)}
    if manifest.throttle:
        reports["move"] = partial(read_report, move_file(places))
    to_serve = partial(serve, page, tables, announce, stop.wait, context=context, reports=reports)
    await to_serve(host=at.host, port=at.port, token_file=at.token_file)


def skew_of(places: PlatformPlaces, instance: str) -> dict[str, Any]:
    """How unevenly the keys of an app are dealt, as the Spark host has said last; no streams where it has not
    said it.
    """
    host = read_hosted(places)[1].get(instance, HostReport())
    return {"streams": [told_skew(one) for one in host.skew]}


def serve_state(folder: Path, at: Listening) -> None:
    """`gear page`: the page of the demo whose state folder this is. Raises `StateError` and `PageError`."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise StateError(f"{folder} is not the state folder of a demo: give --state the one that it printed")
    out = results()
    asyncio.run(
        show_page(manifest, PlatformPlaces(folder), lambda address: out.print(f"page: {address}"), at)
    )


def main(folder: str, port: str) -> int:
    """Serve the page of the run in `folder`; the exit code, 1 with a sentence where it cannot be served."""
    try:
        manifest = read_manifest(Path(folder))
        if manifest is not None:
            at = Listening(port=int(port))
            asyncio.run(show_page(manifest, PlatformPlaces(Path(folder)), lambda address: None, at))
    except GeartrainError as error:
        sys.stderr.write(f"page: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
