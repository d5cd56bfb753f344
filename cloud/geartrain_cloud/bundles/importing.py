"""Import a flow from its unpacked bundle: what each short-lived process of the platform does that loads one.

Before the flow is loaded. Guarantees: the bundle's modules are found before those that are installed, and
nothing is written into its folder.
"""

from __future__ import annotations

import sys


def import_from(bundle: str) -> None:
    """Have this process find modules in the folder `bundle` first; "" for none, which changes nothing."""
    if bundle:
        sys.dont_write_bytecode = True  # the folder holds what was signed, and no more
        sys.path.insert(0, bundle)
