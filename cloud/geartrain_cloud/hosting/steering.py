"""Which flows of a group do not move, or have no part in its micro-batches: what the host says of them
between two versions of the plan. And up to where tables hold what a flow makes again.

Between the host and the source of the group's query, which asks before each micro-batch. Guarantees: what is
said is durable when `save` returns. A flow that is held keeps its positions. One that is out has no part even
in a micro-batch that was planned with it: its state stays as it was before.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from geartrain.adapters.files import write_durable
from geartrain_cloud.hosting.errors import HostError


class Out(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A generation that was put out.

    why: the sentence; positions: where its state stands, which is the end of the last micro-batch that Spark
    has committed; count: its own count of micro-batches there; stop: where the micro-batch after that ends,
    if its tables hold it already; returns: it comes back by itself, since nothing is wrong with the flow;
    is_lost: its state is lost, so it does not come back.
    """

    why: str
    positions: dict[str, int]
    count: int
    stop: dict[str, int] = {}
    returns: bool = False
    is_lost: bool = False


class Stop(msgspec.Struct, array_like=True, frozen=True):
    """Where a micro-batch ends that a flow's tables hold. count: the flow's own of it; positions: its end;
    undivided: only some of its stores hold it, so the others are to be given all of its rows at once.
    """

    count: int
    positions: dict[str, int]
    undivided: bool = False


class Steering(msgspec.Struct, forbid_unknown_fields=True):
    """held: why a generation waits; out: those that were put out; stops: where tables stand, ascending, that
    hold more than Spark has committed. All by the generation's name.
    """

    held: dict[str, str] = {}
    out: dict[str, Out] = {}
    stops: dict[str, tuple[Stop, ...]] = {}


class SteeringFile:
    """The file, as one process knows it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._last = Steering()

    def read(self) -> Steering:
        """What holds now; raises `HostError` for a damaged file."""
        try:
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._seen:
                self._last = msgspec.json.decode(self._path.read_bytes(), type=Steering)
                self._seen = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            return Steering()
        except (OSError, msgspec.DecodeError) as error:
            raise HostError(f"{self._path} cannot be read ({error}): bring it back from a copy") from None
        return self._last

    def save(self, steering: Steering) -> None:
        """Say what holds from now on; raises `OSError`."""
        write_durable(self._path, msgspec.json.encode(steering))
