"""Flows on their way into a host: one short-lived process for each, at most two at a time.

Between wanted.json and the groups. Guarantees: the host goes on meanwhile. A process that takes too long is
killed, and what it prints is not kept but for its end. Whatever goes wrong is one sentence for that flow
alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from geartrain.printable import printable
from geartrain_cloud.hosting.errors import PreparationError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepare import Request
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.program import program
from geartrain_cloud.hosting.wanted import WantedPlan
from geartrain_cloud.short_process import Ended, run_short

WAIT_S = 120.0
"""How long a flow may take to be prepared: its module is imported, which may take long on a busy machine."""

ANSWER_BYTES_MAX = 16 << 20
_AT_ONCE = 2


class Preparing:
    """The processes of one host."""

    def __init__(self, places: HostPlaces, wait_s: float = WAIT_S) -> None:
        self._places, self._wait_s = places, wait_s
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prepare")

    def begin(
        self, instance: str, wanted: WantedPlan, kept: Mapping[str, str] | None = None
    ) -> Future[Prepared]:
        """Have a flow prepared; the future raises `PreparationError`. kept: as for `prepare`."""
        return self._pool.submit(self.prepare, instance, wanted, kept)

    def prepare(self, instance: str, wanted: WantedPlan, kept: Mapping[str, str] | None = None) -> Prepared:
        """Have a flow prepared, and wait; raises `PreparationError`.

        kept: by top-level name, the hash of the code that it has run so far and goes on with.
        """
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
            wanted.without,
            wanted.begin,
            wanted.attached,
            {} if wanted.bundle else dict(kept or {}),
            wanted.given_up,
        )
        asked = msgspec.json.encode(request)
        try:
            ended = asyncio.run(
                run_short("geartrain_cloud.hosting.prepare", asked, self._wait_s, ANSWER_BYTES_MAX)
            )
        except TimeoutError:
            raise PreparationError(
                f"flow {instance}: its module was not imported and planned within {self._wait_s:.0f} s: look "
                "for what it waits for when it is imported"
            ) from None
        except OSError as error:
            raise PreparationError(
                f"flow {instance}: no process can be started to prepare it: {error.strerror or error}"
            ) from None
        if ended.is_too_long:
            raise PreparationError(
                f"flow {instance}: its plan has more than {ANSWER_BYTES_MAX:,} bytes: make it smaller"
            )
        return self._answer(instance, ended)

    def _answer(self, instance: str, ended: Ended) -> Prepared:
        try:
            found = json.loads(ended.answer)
            if "error" in found:
                raise PreparationError(f"flow {instance}: {printable(str(found['error']))}")
            prepared = msgspec.convert(found, Prepared)
        except (ValueError, TypeError, msgspec.ValidationError):
            said = ended.last_line or ": it said nothing"
            raise PreparationError(
                f"flow {instance}: the process that prepares it ended with code {ended.code}{said}"
            ) from None
        if prepared.program != program():
            raise PreparationError(
                f"flow {instance}: the files of Geartrain were replaced while the host runs, and only the "
                "new ones can run it: start the platform again"
            )
        return prepared

    def close(self) -> None:
        """Wait for none of them."""
        self._pool.shutdown(wait=False, cancel_futures=True)
