"""A flow in this process, from its sources to its tables: no broker, no Spark, the same bytes.

This is what `gear run` does. One fragment holds all steps, so every record takes the way that any cut gives
it, except for the way between the tiers. It runs until every source has ended, or until it is told to stop.

Guarantees: the tables are put in place when the run has ended. The former ones stay as they were if a run
fails, or if it is stopped although all its sources end by themselves. Each sink's records are in a table of
its name. Parquet files are written beside the tables. Console sinks are printed and actuators are called, if
the options say so. Nothing else leaves this process, and the result says what was left out.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.adapters.sqlite import is_full_disk
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.adapters.temporary import temporary_folder
from geartrain.declarations.cloud_sink import (
    ConsoleSink,
    DeltaTable,
    KafkaSink,
    MqttSink,
    ParquetTable,
    PostgresTable,
    WebhookSink,
)
from geartrain.declarations.device_sink import Actuator, JsonLinesFile
from geartrain.declarations.sink import Sink, Table
from geartrain.errors import ConfigError, StepError
from geartrain.graph.graph import DEAD_LETTERS, LATE, OVERTAKEN, Graph, Step
from geartrain.operators.sink import SinkOperator
from geartrain.operators.source import SourceOperator
from geartrain.ports import Clock
from geartrain.records.batch import Batch, DeadLetter, source_of
from geartrain.records.codes import Code
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME, format_time
from geartrain.records.letters import Letter
from geartrain.runtime.fragment import Output
from geartrain.runtime.local import LocalRun
from geartrain.runtime.opened import described
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_client.errors import DeadLettersError
from geartrain_cloud.cli.actuating import Actuating
from geartrain_cloud.cli.fetched import Fetched, FetchedRun
from geartrain_cloud.sinks.console import Console
from geartrain_cloud.sinks.layout import SYSTEM_TABLES, TableError
from geartrain_cloud.sinks.parquet import ParquetTables
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Store
from geartrain_cloud.sinks.tables import row_count, rows, table_names, write_json
from geartrain_cloud.spark.breaker import LETTERS_PERCENT, too_many_letters

READ_ROWS = 1_000
WRITE_ROWS = 20_000
WRITE_S = 1.0
"""How long a row waits to be written while a source goes on."""
REASONS_KEPT = 5
"""Dead letters of each step whose reasons are in the result."""
_QUERY = "run"
_RECORD_CHARS = 200
_OF_RECORDS = frozenset({Code.MISTIMED, Code.BEFORE_1970, Code.IN_FUTURE, Code.WRONG_TYPE, Code.TOO_LARGE})
"""What is refused of a source's records, and not by the source, which names the row itself."""
_RESULT_FOR_EACH = frozenset(
    {"map", "reduce", "fold", "aggregate", "broadcast", "window_reduce", "window_fold", "window_aggregate"}
)
"""Kinds of steps that have a result for each record or window that they do not refuse."""


@dataclass(slots=True)
class Refused:
    """The dead letters of one step: how many, and the reasons of the first of them, each naming its row.

    misfits: those of values that did not fit their type.
    """

    step: str
    count: int = 0
    misfits: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Place:
    """How far a split was read: its next position, its records' highest event time, whether it has ended."""

    source: str
    split: str
    position: int
    event_time: str | None
    ended: bool


@dataclass(slots=True)
class RunResult:
    """Totals of a run.

    records_read: rows that became records; dead_letters, late: those that did not, or not in time; records:
    by sink, all that came to rest there; rows: by table, what it holds at the end; refused: the first dead
    letters; refused_by: all of them, by step; records_of: by source, those read; refused_of: by source, how
    many of its records each step refused; places: of each split; ended: whether every source has ended;
    passed_over: what sources have passed over without a record or a dead letter, by name; written: the files
    and folders that were put in place; left_out: what was not done, one sentence each.
    """

    records_read: int = 0
    dead_letters: int = 0
    late: int = 0
    records: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)
    refused_by: list[Refused] = field(default_factory=list)
    records_of: dict[str, int] = field(default_factory=dict)
    refused_of: dict[str, dict[str, int]] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    ended: bool = True
    written: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    passed_over: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Now:
    """Where a run stands: records read, dead letters, rows written."""

    read: int
    letters: int
    written: int


def _always() -> bool:
    return True


def _nobody(now: Now) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a flow is run.

    actuate: call the functions of actuators; times: write the event time of each row into the JSON of its
    table; console: print what console sinks get; going: asked all the time, says whether to go on; tell: told
    where the run stands, as often; clock: of this process.
    """

    actuate: bool = False
    times: bool = False
    console: bool = False
    going: Callable[[], bool] = _always
    tell: Callable[[Now], None] = _nobody
    clock: Clock = field(default_factory=SystemClock)


def run_in_process(
    graph: Graph,
    output: Path | None,
    options: RunOptions | None = None,
    *,
    refused_max: int = 10,
    fetched: Fetched | None = None,
    fleet: Mapping[str, Graph] | None = None,
) -> RunResult:
    """Run `graph` until its sources have ended, or `options` say to stop.

    output: a folder for `tables.sqlite`, one JSON file a table (the output contract) and one folder a Parquet
    sink; with None, nothing is kept. The folder is tried before anything is read. fetched: records that stand
    in the place of the sources; fleet: by device, the flow as that has it, None for one device that has all.
    Raises `ConfigError` where the folder cannot be written, `SourceError` when a
    source cannot be read, `StepError` and `TableError`.
    """
    how = options or RunOptions()
    with _draft_folder(output) as folder:
        path = folder / "tables.sqlite"
        result = asyncio.run(_run(graph, folder, how, fetched, fleet, keeps=output is not None))
        result.refused = rows(path, "dead_letters", canonical=True)[:refused_max]
        # Without a log between them no clock passes a record.
        absent = SYSTEM_TABLES[OVERTAKEN].name if fetched is None else ""
        names = [name for name in table_names(path) if name != absent]
        result.rows = {name: row_count(path, name) for name in names}
        if output is not None and (result.ended or live_sources(graph)):
            _put_in_place(folder, output, result, timed=how.times)
    return result


def live_sources(graph: Graph) -> list[str]:
    """The sources of a graph that may go on for ever."""
    return [
        step.id
        for step in graph.sources()
        if isinstance(step.operator, SourceOperator) and not step.operator.source.bounded
    ]


def check_letters(graph: Graph, result: RunResult, percent: float = LETTERS_PERCENT) -> None:
    """Raise `DeadLettersError` for a run that is worth little.

    This is one in which a source that ends by itself held no record, or all records of a source became dead
    letters. So is one in which a table is empty, since all results of its step became dead letters. So is one
    with more dead letters in all than the host of Spark would allow.
    """
    live = live_sources(graph)
    for source, count in result.records_of.items():
        refused = result.refused_of.get(source, {})
        if not count and refused:
            raise DeadLettersError(
                f"source {source}: all {sum(refused.values()):,} rows became dead letters, the first as "
                "above: mend the input, or the options of the source"
            )
        if not count and result.ended and source not in live:
            raise DeadLettersError(f"source {source} held no record: is it the right input?")
        for step, letters in refused.items():
            if step != source and letters >= count:
                raise DeadLettersError(
                    f"step {step}: all {count:,} records of source {source} became dead letters, the first "
                    "as above: mend the step, or its input"
                )
    _check_tables(graph, result)
    total = sum(result.records_of.values()) + sum(
        one.count for one in result.refused_by if one.step in result.records_of
    )
    if too_many_letters(total, result.dead_letters, percent):
        raise DeadLettersError(
            f"{result.dead_letters:,} dead letters of {total:,} records, more than {percent:g} %, the first "
            "of them as above: mend the flow or its input"
        )


def _results_of(graph: Graph, step: Step) -> list[str]:
    """The steps whose results come to a step, through any merge."""
    found = []
    for one in step.inputs:
        above = graph[one.step]
        found += _results_of(graph, above) if above.operator.kind == "merge" else [above.id]
    return found


def _check_tables(graph: Graph, result: RunResult) -> None:
    """Raise `DeadLettersError` for a sink that nothing came to, since all results above it were refused."""
    refused = {one.step: one for one in result.refused_by if one.step not in result.records_of}
    for sink in graph.sinks():
        if not result.ended or result.records.get(sink.id, 1):
            continue
        for step in {sink.id, *_results_of(graph, sink)} & refused.keys():
            letters = refused[step]
            if letters.misfits or graph[step].operator.kind in _RESULT_FOR_EACH:
                raise DeadLettersError(
                    f"step {step}: all its results became dead letters ({letters.count:,}), the first as "
                    f"above, so that sink {sink.id} has none: mend the step, or its input"
                )


@contextmanager
def _draft_folder(output: Path | None) -> Iterator[Path]:
    """A folder for the tables of a run, in `output` if there is one; raises `ConfigError` or `MistakeError`,
    and `TableError` where its disk becomes full.
    """
    where = f"--output {output}" if output is not None else "the folder for temporary files"
    if output is None:
        temporary_folder("a folder with --output DIR")
    try:
        if output is not None:
            output.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = tempfile.TemporaryDirectory(prefix=".gear-run-", dir=output, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be written ({error.strerror or error}): name another folder with --output DIR"
        ) from None
    try:
        with draft as folder:
            yield Path(folder)
    except TableError as error:
        if not is_full_disk(error):
            raise
        raise TableError(
            f"{where} cannot be written, for the disk is full: free space there, or name another folder with "
            "--output DIR"
        ) from error


def _put_in_place(draft: Path, output: Path, result: RunResult, *, timed: bool) -> None:
    tables = draft / "tables.sqlite"
    files = [draft / f"{name}.json" for name in result.rows]
    for name, file in zip(result.rows, files, strict=True):
        write_json(rows(tables, name, timed=timed), file)
    try:
        for suffix in ("-wal", "-shm"):  # of the former file: SQLite would take them for the new one's
            (output / f"{tables.name}{suffix}").unlink(missing_ok=True)
        tables.replace(output / tables.name)
        result.written.append(tables.name)
        for folder in sorted(draft.glob("*.parquet")):
            if (output / folder.name).exists():
                (output / folder.name).replace(draft / f"former-{folder.name}")
            folder.replace(output / folder.name)
            result.written.append(folder.name)
        for file in files:
            file.replace(output / file.name)
            result.written.append(file.name)
    except OSError as error:
        raise TableError(
            f"{output} cannot be written ({error.strerror or error}): free space there, or name another "
            "folder with --output DIR"
        ) from None


def _refusing(run: LocalRun | FetchedRun) -> Callable[[DeadLetter], None]:
    """What takes dead letters; a run may open its fragment anew."""

    def refuse(letter: DeadLetter) -> None:
        run.fragment.reject(letter)

    return refuse


@contextmanager
def _naming_step(run: LocalRun | FetchedRun) -> Iterator[None]:
    """Turn what is no `Exception`, and so no dead letter, into a `StepError`; Ctrl-C is left as it is."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001 - raised on as a sentence
        who = f"step {run.fragment.at!r}" if run.fragment.at else "the flow"
        raise StepError(
            f"{who} raised {described(error)}, which is no Exception: let it be one, so that the record "
            "becomes a dead letter"
        ) from None


async def _run(
    graph: Graph,
    folder: Path,
    how: RunOptions,
    fetched: Fetched | None,
    fleet: Mapping[str, Graph] | None,
    *,
    keeps: bool,
) -> RunResult:
    tables = SqliteTables(folder / "tables.sqlite")
    try:
        sinks = _Sinks(graph, tables, folder if keeps else None, console=how.console)
        run: LocalRun | FetchedRun
        if fetched is None:
            run = LocalRun(graph, clock=how.clock, randomness=SystemRandomness(), fleet=fleet)
        else:
            run = FetchedRun(fetched, graph, how.clock)
        letters = _Letters(run.progress.records_of)
        refuse = _refusing(run)
        actuators = Actuating(_actuators(graph), how.clock, refuse) if how.actuate else None
        try:
            with _naming_step(run):
                async for output in run.outputs(READ_ROWS, how.going):
                    letters.take(output)
                    sinks.take(output)
                    if sinks.is_due(how.clock.monotonic_s()):
                        sinks.flush()
                    if actuators is not None:
                        await actuators.take(output)
                    how.tell(Now(run.progress.records_read, letters.count, sinks.written))
        finally:
            if actuators is not None:
                await actuators.stop()
        last = run.fragment.take()  # what actuators refused
        letters.take(last)
        sinks.take(last)
        sinks.flush(last=True)
        totals = tables.records()
        totals.pop(OVERTAKEN, 0)
        return RunResult(
            records_read=run.progress.records_read,
            dead_letters=totals.pop(DEAD_LETTERS, 0),
            late=totals.pop(LATE, 0),
            records=totals,
            refused_by=letters.of_steps(graph),
            records_of=run.progress.records_of,
            refused_of=letters.of_sources(),
            places=list(_places(run)),
            ended=run.ended,
            left_out=list(_left_out(graph, keeps=keeps, how=how)),
            passed_over=run.progress.counts,
        )
    finally:
        tables.close()


def _places(run: LocalRun | FetchedRun) -> Iterator[Place]:
    for (source, split), at in run.progress.positions.items():
        top = at.max_time
        known = START_OF_TIME < top < END_OF_TIME
        yield Place(source, split, at.position, format_time(top) if known else None, at.ended)


def _declared(graph: Graph) -> Iterator[tuple[Step, Sink]]:
    for step in graph.sinks():
        if isinstance(step.operator, SinkOperator):
            yield step, step.operator.table


def _actuators(graph: Graph) -> dict[str, Actuator[Any]]:
    return {step.id: sink for step, sink in _declared(graph) if isinstance(sink, Actuator)}


def _left_out(graph: Graph, *, keeps: bool, how: RunOptions) -> Iterator[str]:
    """What a run does not do that the flow asks for."""
    for step, sink in _declared(graph):
        kept = f"its records are in the table {sink.name}"
        if isinstance(sink, Actuator) and not how.actuate:
            yield f"actuator {step.id} was not called, {kept}: --actuate calls it"
        elif isinstance(sink, JsonLinesFile):
            file = sink.path or f"{sink.name}.jsonl"
            yield f"sink {step.id}: the device's file {file} was not written, {kept}"
        elif isinstance(sink, PostgresTable):
            yield f"sink {step.id}: nothing was written to PostgreSQL, {kept}"
        elif isinstance(sink, DeltaTable):
            yield f"sink {step.id}: no Delta table was written, {kept}"
        elif isinstance(sink, MqttSink):
            yield f"sink {step.id}: nothing was published to {sink.topic or 'MQTT'}, {kept}"
        elif isinstance(sink, KafkaSink):
            yield f"sink {step.id}: nothing was written to Kafka's topic {sink.topic}, {kept}"
        elif isinstance(sink, WebhookSink):
            yield f"sink {step.id}: nothing was sent to its url, {kept}"
        elif isinstance(sink, ConsoleSink) and not how.console:
            yield f"sink {step.id}: nothing was printed beside --json, {kept}"
        elif isinstance(sink, ParquetTable) and not keeps:
            yield f"sink {step.id}: no Parquet file was written: --output DIR writes them"
        elif isinstance(sink, ParquetTable) and sink.folder:
            yield f"sink {step.id}: {sink.folder} was left alone, its files are below --output"


class _Letters:
    """Counts dead letters by step, and keeps the first reasons of each."""

    def __init__(self, sources: Mapping[str, int]) -> None:
        self._sources = sources
        self._by_step: dict[str, Refused] = {}
        self._records: Counter[tuple[str, str]] = Counter()
        self.count = 0

    def take(self, output: Output) -> None:
        """Note the dead letters of an output."""
        for batch in output.batches.get(DEAD_LETTERS, ()):
            self.count += len(batch)
            for row, letter in enumerate(batch.values):
                origin = batch.origin(row)
                source = source_of(origin.name)
                if (
                    source in self._sources and not origin.path
                ):  # the record itself, not what a step made of it
                    self._records[letter.step, source] += 1
                refused = self._by_step.setdefault(letter.step, Refused(letter.step))
                refused.count += 1
                refused.misfits += letter.code == Code.WRONG_TYPE
                if len(refused.reasons) < REASONS_KEPT:
                    refused.reasons.append(self._reason(batch, row, letter))

    def _reason(self, batch: Batch, row: int, letter: Letter) -> str:
        """A source names the row in the reason that it gives; other records are named here."""
        if letter.step in self._sources and letter.code not in _OF_RECORDS:
            return letter.reason
        origin, raw = batch.origin(row), letter.raw.decode(errors="backslashreplace")
        shown = raw if len(raw) <= _RECORD_CHARS else f"{raw[:_RECORD_CHARS]}…"
        return f"{letter.reason}; the record, {origin.name} number {origin.number}: {shown}"

    def of_sources(self) -> dict[str, dict[str, int]]:
        """By source, how many of its records each step refused."""
        found: dict[str, dict[str, int]] = {}
        for (step, source), count in sorted(self._records.items()):
            found.setdefault(source, {})[step] = count
        return found

    def of_steps(self, graph: Graph) -> list[Refused]:
        """All, in the order of the graph's steps."""
        places = {step.id: number for number, step in enumerate(graph.steps)}
        return sorted(self._by_step.values(), key=lambda one: places.get(one.step, len(places)))


class _Sinks:
    """Collects what leaves the fragment and writes it: tables in transactions of about `WRITE_ROWS` rows or
    once a second, Parquet in files of as many rows, console sinks together with the tables.
    """

    def __init__(self, graph: Graph, tables: SqliteTables, folder: Path | None, *, console: bool) -> None:
        """folder: where Parquet folders are made, None for nowhere."""
        self._tables = tables
        self._codecs: dict[str, RowCodec] = dict.fromkeys(SYSTEM_TABLES, RowCodec(Letter))
        self._files = ParquetTables(folder) if folder is not None else None
        self._console = Console() if console else None
        self._store_of: dict[str, Store] = {}
        for step, sink in _declared(graph):
            codec = self._codecs[step.id] = RowCodec(graph[step.inputs[0].step].out)
            tables.declare(step.id, Table(sink.name, sink.key), codec.schema)
            if isinstance(sink, ParquetTable) and self._files is not None:
                self._files.declare(step.id, ParquetTable(sink.name, sink.key), codec.schema)
                self._store_of[step.id] = self._files
            elif isinstance(sink, ConsoleSink) and self._console is not None:
                self._console.declare(step.id, sink, codec.schema)
                self._store_of[step.id] = self._console
        if self._files is not None:
            self._files.attach(_QUERY, _QUERY, has_run=False)
        self._waiting: dict[str, list[ColumnBatch]] = {}
        self._for_files: dict[str, list[ColumnBatch]] = {}
        self._count, self._files_count, self._since_s = 0, 0, 0.0
        self._batch_id, self._files_id = 0, 0
        self.written = 0
        """Rows written so far."""

    def take(self, output: Output) -> None:
        """Keep the batches of an output."""
        for sink, batches in output.batches.items():
            self._waiting.setdefault(sink, []).extend(self._columns(sink, batches))
            self._count += sum(map(len, batches))

    def is_due(self, now_s: float) -> bool:
        """Whether enough has come, or the oldest has waited for long."""
        if not self._count:
            self._since_s = now_s
        return self._count >= WRITE_ROWS or (self._count > 0 and now_s - self._since_s >= WRITE_S)

    def flush(self, *, last: bool = False) -> None:
        """Write what is waiting; `last`: files, too, however few their rows."""
        waiting, self._waiting = self._waiting, {}
        try:
            if waiting:
                self._tables.write(_QUERY, self._batch_id, {}, waiting)
            self._write_elsewhere(waiting, last=last)
        except TableError as error:
            if is_full_disk(error):
                raise  # `_draft_folder` says so
            raise TableError(
                f"{error}: is the disk full? Free space, or name another with --output"
            ) from None
        self.written += self._count
        self._batch_id += bool(waiting)
        self._count = 0

    def _write_elsewhere(self, waiting: Mapping[str, list[ColumnBatch]], *, last: bool) -> None:
        for sink, batches in waiting.items():
            if self._store_of.get(sink) is self._files and self._files is not None:
                self._for_files.setdefault(sink, []).extend(batches)
                self._files_count += sum(map(len, batches))
        if self._files is not None and (last or self._files_count >= WRITE_ROWS):
            self._files.write(_QUERY, self._files_id, {}, self._for_files)
            self._for_files, self._files_count = {}, 0
            self._files_id += 1
        if self._console is not None:
            printed = {s: b for s, b in waiting.items() if self._store_of.get(s) is self._console}
            self._console.write(_QUERY, self._batch_id, {}, printed)

    def _columns(self, sink: str, batches: Iterable[Batch]) -> list[ColumnBatch]:
        codec = self._codecs[sink]
        return [
            ColumnBatch(codec.to_columns(one.values), one.times, one.names, one.numbers, one.paths)
            for one in batches
        ]
