"""What a worker of Spark needs to run a flow of a group: its query, its code, and the mark that says so.

Around the fragments of every stage. Guarantees: in the block of `running`, `sys.modules` has the flow's own
code, and the process's mark names its generation. What a flow's code raises is noted under its name before
Spark hears of it. A generation that is suspected is not run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from geartrain.adapters.files import make_private_folder, write_private
from geartrain.printable import printable
from geartrain_cloud.hosting.code import Bookcase
from geartrain_cloud.hosting.dealing import Dealing
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.marks import Marks
from geartrain_cloud.hosting.places import GroupPlaces
from geartrain_cloud.hosting.plans import open_plan
from geartrain_cloud.hosting.versions import Hosted, Version, Versions
from geartrain_cloud.spark.compile import Query

_WHY_CHARACTERS_MAX = 500


class Workshop:
    """That of one process, for one group."""

    def __init__(self, places: GroupPlaces) -> None:
        self.places = self._places = places
        self._versions = Versions(places.versions)
        self._bookcase = Bookcase(places.code)
        self._queries: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Query, Dealing]] = {}
        self.marks = Marks(places.marks)

    def version(self, number: int) -> Version:
        """A version of the plan; raises `HostError`."""
        return self._versions.read(number)

    def note_dropped(self, hosted: Hosted, where: str, cells: dict[str, int]) -> None:
        """Note how many keys' state steps have lost when a generation came in; where: stage and slot."""
        folder = self._places.dropped(hosted.name)
        make_private_folder(folder)
        write_private(folder / where, msgspec.json.encode(cells).decode())

    @contextmanager
    def running(self, hosted: Hosted, calls: int = 0) -> Iterator[tuple[Query, Dealing]]:
        """Run code of a generation in the block, which gets its query and how rows are dealt to devices.

        calls: about how often the block calls that code. Raises whatever that raises.
        """
        if self._places.suspect(hosted.name).exists():
            raise HostError(f"flow {hosted.flow} is put out of its group")
        try:
            with self._bookcase.use(hosted.code), self.marks.of(hosted.name):
                key = hosted.plan, tuple(sorted(hosted.code.items()))
                if key not in self._queries:
                    query = open_plan(self._places.plans, hosted.plan)
                    self._queries[key] = query, Dealing(query)
                self.marks.goes_on(calls)
                yield self._queries[key]
        except BaseException as error:  # user code may raise any
            self._note(hosted, error)
            raise

    def _note(self, hosted: Hosted, error: BaseException) -> None:
        said = printable(" ".join(f"{type(error).__name__}: {error}".split()))[:_WHY_CHARACTERS_MAX]
        write_private(self._places.failures / f"{hosted.name}.{os.urandom(6).hex()}", said)
