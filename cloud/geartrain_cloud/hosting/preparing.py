"""Flows on their way into a host: one short-lived process for each, at most two at a time.

Between wanted.json and the groups. Guarantees: the host goes on meanwhile. A process that takes too long is
killed. Whatever goes wrong is one sentence for that flow alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from geartrain.printable import printable
from geartrain_cloud.hosting.errors import PreparationError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepare import Request
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.wanted import WantedPlan

WAIT_S = 120.0
"""How long a flow may take to be prepared: its module is imported, which may take long on a busy machine."""

_AT_ONCE = 2
_SAID_CHARACTERS_MAX = 500


class Preparing:
    """The processes of one host."""

    def __init__(self, places: HostPlaces, wait_s: float = WAIT_S) -> None:
        self._places, self._wait_s = places, wait_s
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prepare")

    def begin(self, instance: str, wanted: WantedPlan) -> Future[Prepared]:
        """Have a flow prepared; the future raises `PreparationError`."""
        return self._pool.submit(self.prepare, instance, wanted)

    def prepare(self, instance: str, wanted: WantedPlan) -> Prepared:
        """Have a flow prepared, and wait; raises `PreparationError`."""
        request = Request(
            instance,
            wanted.flow,
            str(self._places.plans.absolute()),
            str(self._places.code.absolute()),
            wanted.cut,
            wanted.steps,
            wanted.sources,
            wanted.bundle,
            wanted.cuts,
        )
        command = [sys.executable, "-m", "geartrain_cloud.hosting.prepare"]
        try:
            done = subprocess.run(
                command,
                input=msgspec.json.encode(request),
                capture_output=True,
                timeout=self._wait_s,
                cwd=Path.cwd(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PreparationError(
                f"flow {instance}: its module was not imported and planned within {self._wait_s:.0f} s: look "
                "for what it waits for when it is imported"
            ) from None
        except OSError as error:
            raise PreparationError(
                f"flow {instance}: no process can be started to prepare it: {error.strerror or error}"
            ) from None
        return self._answer(instance, done)

    def _answer(self, instance: str, done: subprocess.CompletedProcess[bytes]) -> Prepared:
        try:
            found = json.loads(done.stdout)
            if "error" in found:
                raise PreparationError(f"flow {instance}: {printable(str(found['error']))}")
            return msgspec.convert(found, Prepared)
        except (ValueError, TypeError, msgspec.ValidationError):
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            said = printable(lines[-1] if lines else "it said nothing")[:_SAID_CHARACTERS_MAX]
            raise PreparationError(
                f"flow {instance}: the process that prepares it ended with code {done.returncode}: {said}"
            ) from None

    def close(self) -> None:
        """Wait for none of them."""
        self._pool.shutdown(wait=False, cancel_futures=True)
