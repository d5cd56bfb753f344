"""A small file that control replaces and another process follows, such as wanted.json.

Beside every record's path. Guarantees: a change is seen once. A file that cannot be understood is refused
with one sentence, and the follower goes on with what it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from geartrain.adapters.configuration import convert_as
from geartrain.errors import ConfigError
from geartrain_cloud.platform.places import read_report, write_report

T = TypeVar("T", bound=msgspec.Struct)


def put_wanted(path: Path, flows: Mapping[str, Any]) -> None:
    """Have the follower of `path` have these flows, under the next serial, where it is told others.

    Raises `OSError`.
    """
    former = read_report(path)
    if former.get("flows") != flows:
        serial = former.get("serial", 0)
        write_report(path, {"serial": (serial if isinstance(serial, int) else 0) + 1, "flows": flows})


def has_let_go(wanted: Path, status: Path, flow: str) -> bool:
    """Whether the follower of `wanted`, which says in `status` what it has, is to have the flow no more, and
    does not.
    """
    told, said = read_report(wanted), read_report(status)
    is_known = told.get("serial", 0) <= said.get("serial", 0)
    return is_known and flow not in told.get("flows", {}) and flow not in said.get("flows", {})


class FollowedFile(Generic[T]):
    """The JSON file at `path`, which holds one `kind`."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path, self._kind = path, kind
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> T | None:
        """What it holds, if it has changed since it was last asked, and is there; raises `ConfigError`."""
        try:
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen == self._seen:
                return None
            self._seen = seen
            return convert_as(msgspec.json.decode(self._path.read_bytes()), self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"{self._path}: {error}") from None
