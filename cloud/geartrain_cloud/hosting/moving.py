"""The state of a flow on its way to other slots: a durable file of each slot, with a part for each new one.

Inside Spark's workers, between two micro-batches: the former slots write in the one, the new ones take in the
next. No code of the flow is run. Guarantees: state is read and stays while it is written. A file is whole and
durable, or not there. What is taken has the length and the checksum with which it was written.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from zlib import crc32

import msgspec

from geartrain.adapters.files import write_durable
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.places import GroupPlaces
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.spark.buckets import StateMap, join_state, split_state


class _Head(msgspec.Struct, frozen=True):
    """The first line of a file: the bytes of each part, and the checksum of each."""

    sizes: list[int]
    sums: list[int]


_decode_head = msgspec.json.Decoder(_Head).decode


def write_state(places: GroupPlaces, hosted: Hosted, stage: int, slot: int, state: StateMap) -> None:
    """Write what a slot of a generation keeps behind a shuffle, for the slots that come; raises `OSError`."""
    parts = split_state(state, hosted.leaves_for, hosted.buckets, hosted.broadcasts)
    head = _Head([len(part) for part in parts], [crc32(part) for part in parts])
    write_durable(
        places.moving(hosted.name, stage, slot), b"".join([msgspec.json.encode(head), b"\n", *parts])
    )


def take_state(places: GroupPlaces, hosted: Hosted, stage: int, slot: int, state: StateMap) -> None:
    """Fill a slot of a generation with what the former slots have written for it; raises `HostError`."""
    paths = [places.moving(hosted.comes_from, stage, former) for former in range(hosted.former_slots)]
    join_state(state, (_part(path, slot) for path in paths))


def _part(path: Path, slot: int) -> bytes:
    try:
        with path.open("rb") as file:
            line = file.readline()
            head = _decode_head(line)
            begin = len(line) + [0, *accumulate(head.sizes)][slot]
            file.seek(begin)
            found = file.read(head.sizes[slot])
    except (OSError, msgspec.DecodeError, IndexError) as error:
        raise HostError(f"the state {path} cannot be read ({error}): keep log and checkpoint") from None
    if (len(found), crc32(found)) != (head.sizes[slot], head.sums[slot]):
        raise HostError(
            f"the state {path} is damaged: keep log and checkpoint, and bring it back from a copy"
        )
    return found
