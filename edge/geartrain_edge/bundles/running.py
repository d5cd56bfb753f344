"""Code from a bundle in an agent's process: it is found there, and nowhere else.

The agent calls this before it loads the flow. Guarantees: a package that the bundle holds is never taken from
an installation, not even in part. Every file is what the manifest says, or the bundle loses its name, so that
it is fetched anew. Nothing is written into it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from geartrain.errors import ConfigError, DiskError
from geartrain.revision import code_of
from geartrain_edge.bundles.folder import BundleFolder


class BundleFinder:
    """Finds the modules and packages that lie in a bundle's folder; what lies in these, Python finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of a name without a point, in the bundle's folder alone."""
        return None if path is not None else PathFinder.find_spec(name, [self.folder], target)


def run_from(folder: Path, flow: str) -> None:
    """Have this process find modules in the bundle in `folder`, which is named by its code's hash.

    flow: `module:name`, which has to be in it. Raises `ConfigError`, and `DiskError` for a damaged bundle.
    """
    sys.dont_write_bytecode = True  # a torn file of it after a loss of power would not be noticed
    finder = BundleFinder(folder)
    if finder.find_spec(flow.partition(":")[0].partition(".")[0]) is None:
        raise ConfigError(f"the bundle in {folder} holds no package of flow {flow}: submit the app again")
    sys.meta_path.insert(0, finder)
    try:
        why = "" if code_of(flow).hash == folder.name else "its files are not what its name says"
    except ConfigError as error:
        why = str(error)
    if why:
        BundleFolder(folder.parent).discard(folder.name)
        raise DiskError(f"the bundle in {folder} is damaged and is fetched again: {why}")
