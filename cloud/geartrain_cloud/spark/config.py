"""What the driver is told: the flow and its cut, where log, state and tables are, and how Spark runs.

It is read once, before anything else. Guarantees: any fault of the file, of the flow that it names or of an
option in it is one `ConfigError` that names the file and the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from geartrain import __version__
from geartrain.adapters.configuration import read_as
from geartrain.declarations.options import in_file
from geartrain.errors import ConfigError, GeartrainError
from geartrain.flow.loading import load_flow
from geartrain.planning import Plan, make_plan
from geartrain.revision import Revision, code_of, revision_of
from geartrain_cloud.spark.breaker import LETTERS_PERCENT

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Path_ = Annotated[str, msgspec.Meta(min_length=1)]
Options = dict[str, dict[str, Any]]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flow: str
    log: Path_
    state: Path_
    tables: Path_
    instance: str = ""
    mended: str = ""
    cut: str | list[str] = "auto"
    master: str = "local[2]"
    rows_max: Positive = 50_000
    log_wait_s: Positive = 300
    letters_percent: Percent = LETTERS_PERCENT
    spark: dict[str, str] = msgspec.field(default_factory=dict)
    steps: Options = msgspec.field(default_factory=dict)
    sources: Options = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """A checked file.

    flow: `module:name`; instance: under which name it runs, "" for the flow's own; cut: as for `make_plan`;
    log: ingest's folder; state: the driver's own, for checkpoints and status.json; tables: the SQLite file;
    master: Spark's; rows_max: rows of each partition in one micro-batch; log_wait_s: how long to wait for
    ingest to make its log; letters_percent: the share of records that Spark's steps may turn into dead
    letters before their query stops, 100 for any; spark: settings over ours; steps and sources: options by
    step id; mended: what the hash of the flow's files begins with, where these may differ from those that the
    checkpoints were begun with.
    """

    path: str
    flow: str
    log: Path
    state: Path
    tables: Path
    cut: str | tuple[str, ...] = "auto"
    master: str = "local[2]"
    rows_max: int = 50_000
    log_wait_s: int = 300
    letters_percent: float = LETTERS_PERCENT
    spark: dict[str, str] = field(default_factory=dict)
    steps: Options = field(default_factory=dict)
    sources: Options = field(default_factory=dict)
    instance: str = ""
    mended: str = ""

    @property
    def outbox(self) -> Path:
        """The SQLite file of what goes down to devices, beside the tables."""
        return self.tables.with_name("outbox.sqlite")

    @property
    def status_file(self) -> Path:
        """Where the status is."""
        return self.state / "status.json"

    def plan(self) -> Plan:
        """Load the flow, set its options and cut it; raises `ConfigError`."""
        try:
            graph = load_flow(self.flow).graph()
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: flow: {error}") from None
        try:
            graph = graph.named(self.instance)
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: instance: {error}") from None
        for section, options in (("sources", self.sources), ("steps", self.steps)):
            graph = graph.with_options(options, f"{self.path}: [{section}]")
        try:
            return make_plan(graph, self.cut)
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: cut: {error}") from None

    def revision(self, plan: Plan) -> Revision:
        """The revision that `plan` makes, with the code of its flow; raises `ConfigError`."""
        try:
            code = code_of(self.flow)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: flow: {error}") from None
        return revision_of(self.flow, plan, self.steps, code, __version__)


def read_config(path: Path) -> DriverConfig:
    """The configuration in the TOML file `path`; relative folders are taken from the file's.

    Raises `ConfigError`.
    """
    found = read_as(path, _File)
    folder = path.absolute().parent
    return DriverConfig(
        str(path),
        found.flow,
        folder / found.log,
        folder / found.state,
        folder / found.tables,
        cut=found.cut if isinstance(found.cut, str) else tuple(found.cut),
        master=found.master,
        rows_max=found.rows_max,
        log_wait_s=found.log_wait_s,
        letters_percent=found.letters_percent,
        spark=found.spark,
        steps=in_file(found.steps, folder),
        sources=in_file(found.sources, folder),
        instance=found.instance,
        mended=found.mended,
    )
