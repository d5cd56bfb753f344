"""The map of packages: which may import which. A package is the modules directly in one folder.

Each part is a list of layers, lowest first. A package may import those of the layers below its own, never one
of its own layer or above, so imports form no cycle. docs/ARCHITECTURE.md shows the same lists. Imports inside
functions and under TYPE_CHECKING count as well: they are no way around the map.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.tidy.source import Source

LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "geartrain": (
        ("errors", "printable"),
        ("ports", "records"),
        ("concurrency", "schema"),
        ("adapters",),
        ("aggregates", "declarations", "state", "wire"),
        ("bundle", "control", "delivery", "fleet", "graph"),
        ("accumulating", "tasks"),
        ("windowing",),
        ("operators",),
        ("runtime",),
        ("planning",),
        ("flow", "revision"),
        ("testing", "."),
    ),
    "geartrain_edge": (
        (".",),
        ("spool",),
        ("bundles", "sinks", "sources", "uplink"),
        ("programs",),
        ("downlink", "parent"),
        ("joining",),
        ("agent",),
    ),
    "geartrain_client": (
        (".", "planning"),
        ("flash", "rest", "signing", "terminal"),
        ("cli",),
    ),
    "geartrain_cloud": (
        (".", "ports"),
        ("bundles", "certs", "log"),
        ("platform",),
        ("broker", "ingest", "sinks"),
        ("downlink", "pages"),
        ("spark", "supervisor"),
        ("changes", "explaining", "hosting", "inspecting"),
        ("control_store",),
        ("rest",),
        ("backup", "control"),
        ("cli",),
    ),
    "geartrain_simulation": (
        ("machine",),
        ("stores",),
        ("checkers",),
        ("fleet",),
        ("campaign",),
        (".",),
    ),
}
"""For each part its layers, lowest first; "." is what lies directly in the part's own folder."""


def layers_of(part: str) -> dict[str, int]:
    """The layer of each package of `part`, counted from the lowest; its name without the part's."""
    return {package: layer for layer, packages in enumerate(LAYERS[part]) for package in packages}


def wrong_imports(sources: list[Source]) -> Iterator[str]:
    """A sentence for each import that goes up, or sideways to another package of the same layer."""
    modules = {source.module: source for source in sources}
    folders = {source.module for source in sources if source.path.name == "__init__.py"}

    def place(module: str) -> str:
        parts = module.split(".")
        return parts[1] if len(parts) > 2 or (len(parts) == 2 and module in folders) else "."

    for source in sources:
        if source.package not in LAYERS:
            continue
        layers = layers_of(source.package)
        here = place(source.module)
        if here not in layers:
            yield f"{source.path}: package {here} stands in no layer of {source.package}: add it to the map"
            continue
        for line, name in source.imports():
            target = name if name in modules else name.rpartition(".")[0]
            if target not in modules or modules[target].package != source.package:
                continue
            there = place(target)
            if there != here and layers.get(there, len(layers)) >= layers[here]:
                yield f"{source.path}:{line} {here} may not import {there}, which is not below it"
