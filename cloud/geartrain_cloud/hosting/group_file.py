"""group.json: what a group was made for, fixed with its checkpoint.

It is read before a group's query starts. Guarantees: a checkpoint is never run with another number of
partitions than it was made with. One that holds state is never run with another number of stages.
"""

from __future__ import annotations

import secrets

import msgspec
from msgspec.structs import replace

from geartrain.adapters.files import write_durable
from geartrain.adapters.layouts import FileLayout
from geartrain_cloud.hosting.places import GroupPlaces
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.errors import RefusedError

_FILE = "group.json"
LAYOUT = FileLayout("geartrain-group", 1, RefusedError, "begin with another state folder of the platform")


class GroupIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """identity: minted with the group; stages: physical ones; partitions: into which Spark deals slots;
    layout: of all that the group keeps in its folder.
    """

    identity: str
    stages: int
    partitions: int
    layout: str = LAYOUT.text


def note_stages(places: GroupPlaces, made: GroupIdentity, stages: int) -> GroupIdentity:
    """Note that a group without stages has some from now on; raises `OSError`."""
    found = replace(made, stages=stages)
    write_durable(places.folder / _FILE, msgspec.json.encode(found))
    return found


def has_stages(places: GroupPlaces) -> bool:
    """Whether the query of a group keeps state; False where nobody can tell."""
    return stages_of(places) > 0


def stages_of(places: GroupPlaces) -> int:
    """How many stages of a group keep state; 0 where nobody can tell."""
    try:
        return msgspec.json.decode((places.folder / _FILE).read_bytes(), type=GroupIdentity).stages
    except (OSError, msgspec.DecodeError):
        return 0


def open_group(
    places: GroupPlaces, name: str, stages: int, partitions: int
) -> tuple[GroupIdentity, Checkpoint]:
    """What the group in this folder is, made now where there is none, and its checkpoint, whole or not.

    Raises `RefusedError` where it cannot be told what the group is, `OSError`.
    """
    path = places.folder / _FILE
    query = f"group {name}"
    try:
        raw = path.read_bytes()
        LAYOUT.check_json(raw, f"{query}: {path}")
        found = msgspec.json.decode(raw, type=GroupIdentity)
    except FileNotFoundError:
        if (places.folder / "spark").exists():
            raise RefusedError(
                f"{query}: {places.folder} holds a checkpoint without its {_FILE}: bring it back from a copy"
            ) from None
        found = GroupIdentity(secrets.token_hex(16), stages, partitions)
        write_durable(path, msgspec.json.encode(found))
    except msgspec.DecodeError as error:
        raise RefusedError(f"{query}: {path} cannot be read ({error}): bring it back from a copy") from None
    return found, Checkpoint(query, places.folder)
