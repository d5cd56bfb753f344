"""Every rule can be broken: each is told of one violation, and names itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from geartrain.errors import LedgerError, NetError, WireError
from geartrain.errors.reason import make_reason
from geartrain.graph.graph import CLAIMS
from geartrain.ports import SpoolCommit, SpooledBatch
from geartrain.records.event_time import END_OF_TIME
from geartrain.wire.codec import decode_header, encode_control, encode_envelope, encode_header
from geartrain.wire.envelope import Ack, Envelope
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.ports import ClosedEpoch, Entry, EntryKind, LedgerChange, QuarantinedBatch
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_simulation.campaign.runs import run_fleet
from geartrain_simulation.checkers import Checkers, ViolationError
from geartrain_simulation.checkers.accepted import Accepted
from geartrain_simulation.checkers.caps import CLAIMS_MAX
from geartrain_simulation.checkers.delivery import Delivery
from geartrain_simulation.checkers.drain import Drain
from geartrain_simulation.fleet.fleet import Fleet, Size
from geartrain_simulation.fleet.spark_model import SinkBook
from geartrain_simulation.machine.world import World
from geartrain_simulation.stores.segments import LoggedRow, decode_plain

SMALL = Size(devices=2, records=12, limit_s=120.0)
DEVICE, FLOW, CHANNEL, SOURCE = "device-1", "fleet", "readings", "readings"
UP, ACK = f"geartrain/v1/00/{DEVICE}/{FLOW}/up", f"geartrain/v1/00/{DEVICE}/{FLOW}/ack"
Tamper = Callable[[Fleet], object]


def run(plot: Tamper) -> str:
    """The rule that a run breaks when `plot` has arranged what goes wrong; empty for none."""
    try:
        Fleet(0, plot=plot, size=SMALL).run()  # type: ignore[arg-type]
    except ViolationError as error:
        return error.rule
    return ""


def at_once(tamper: Tamper) -> str:
    """The rule that is broken by what happens in the middle of a run that is otherwise good."""

    def plot(fleet: Fleet) -> None:
        def strike() -> None:
            if len(fleet.spools[DEVICE].batches) > 1 and fleet.ledger.cursors:
                tamper(fleet)
            else:
                fleet.world.later(0.01, strike)

        fleet.world.later(0.1, strike)

    return run(plot)


def at_the_end(tamper: Tamper) -> str:
    """The rule that is broken by what a good run has left, once that was tampered with."""

    def plot(fleet: Fleet) -> None:
        right = fleet.checkers.check_log

        def check_log(*args: object, **options: object) -> None:
            tamper(fleet)
            right(*args, **options)  # type: ignore[arg-type]

        fleet.checkers.check_log = check_log  # type: ignore[method-assign]

    return run(plot)


def test_a_good_run_breaks_no_rule() -> None:
    assert run(lambda fleet: None) == ""
    assert at_once(lambda fleet: None) == ""
    assert at_the_end(lambda fleet: None) == ""


# At every step


def said(fleet: Fleet, topic: str, payload: bytes) -> None:
    for observe in fleet.broker.observers:
        observe("someone", topic, payload)


def first_batch(fleet: Fleet) -> SpooledBatch:
    return min(fleet.spools[DEVICE].batches.values(), key=lambda batch: batch.seq)


def send(fleet: Fleet, batch: SpooledBatch, topic: str = UP) -> None:
    said(fleet, topic, encode_envelope(Envelope(batch.header, batch.body, batch.digest, 1)))


def ack(fleet: Fleet, seq: int, digest: bytes = bytes(16)) -> None:
    epoch = fleet.spools[DEVICE].epoch
    said(fleet, ACK, encode_control(Ack(FLOW, epoch, seq, digest, 1)))


def an_entry(fleet: Fleet, **changes: object) -> Entry:
    last = fleet.ledger.entries[FLOW, 0][-1]
    entry = Entry(FLOW, 0, last.number + 1, EntryKind.WATERMARK, clocks=last.clocks)
    return replace(entry, **changes)  # type: ignore[arg-type]


def commit(fleet: Fleet, *entries: Entry) -> None:
    fleet.ledger.on_commit(LedgerChange(entries))


def rows_of_no_plan(fleet: Fleet) -> None:
    place = {"kind": EntryKind.ROWS, "channel": "nowhere", "device": DEVICE}
    commit(fleet, an_entry(fleet, **place))


def two_contents(fleet: Fleet) -> None:
    batch = first_batch(fleet)
    send(fleet, batch)
    send(fleet, msgspec.structs.replace(batch, body=batch.body + b"x"))


def foreign_digest(fleet: Fleet) -> None:
    batch = first_batch(fleet)
    send(fleet, batch)
    cursor = next(c for c in fleet.ledger.cursors.values())
    fleet.ledger.on_commit(
        LedgerChange(cursors=[replace(cursor, device=DEVICE, epoch=fleet.spools[DEVICE].epoch, seq=10**6)])
    )
    ack(fleet, batch.seq)


def cursor_back(fleet: Fleet) -> None:
    cursor = next(iter(fleet.ledger.cursors.values()))
    fleet.ledger.on_commit(LedgerChange(cursors=[replace(cursor, seq=cursor.seq + 5)]))
    fleet.ledger.on_commit(LedgerChange(cursors=[replace(cursor, seq=cursor.seq + 4)]))


def closed_at(fleet: Fleet, seq: int) -> None:
    """As when a group holds the last batches of an epoch and the hello that replaces it."""
    closed = ClosedEpoch(DEVICE, FLOW, fleet.spools[DEVICE].epoch, 1, seq, bytes(16))
    fleet.ledger.on_commit(LedgerChange(closed_epochs=[closed]))


def closed_back(fleet: Fleet) -> None:
    closed_at(fleet, 10**6)
    closed_at(fleet, 1)


def taken_twice(fleet: Fleet) -> None:
    spool = fleet.spools[DEVICE]
    fleet.checkers._accepted[DEVICE, FLOW]._watermarks.clear()
    for batch in sorted(spool.batches.values(), key=lambda batch: batch.seq):
        if decode_header(batch.header).channel:
            spool.on_commit(SpoolCommit([batch]))


def watermark_back(fleet: Fleet) -> None:
    spool = fleet.spools[DEVICE]
    last = max(spool.batches.values(), key=lambda batch: batch.seq)
    accepted = fleet.checkers._accepted[DEVICE, FLOW]
    accepted.may_repeat = True
    marks = accepted._watermarks[spool, spool.epoch]
    accepted._watermarks[spool, spool.epoch] = {name: mark + 1 for name, mark in marks.items()}
    spool.on_commit(SpoolCommit([last]))


def clock_ahead(fleet: Fleet) -> None:
    commit(fleet, an_entry(fleet, clocks={SOURCE: END_OF_TIME}))


def ended_by_nobody(fleet: Fleet) -> None:
    last = fleet.ledger.entries[FLOW, 0][-1]
    commit(fleet, an_entry(fleet, clocks={**last.clocks, "others": END_OF_TIME}))


def ends_what_it_lacks(fleet: Fleet) -> None:
    spool = fleet.spools[DEVICE]
    last = max(spool.batches.values(), key=lambda batch: batch.seq)
    header = msgspec.structs.replace(decode_header(last.header), source_watermarks={"others": END_OF_TIME})
    spool.on_commit(SpoolCommit([msgspec.structs.replace(last, header=encode_header(header), body=b"")]))


def clock_back(fleet: Fleet) -> None:
    fleet.checkers.clocks.values[FLOW, 0] = {SOURCE: END_OF_TIME}
    commit(fleet, an_entry(fleet))


def orphan(fleet: Fleet, number: str = "000000000099-0") -> None:
    fleet.platter.put(f"segments/{FLOW}/{CHANNEL}/p0/{number}.arrow", b"")
    fleet.checkers.delivery._term = 0
    commit(fleet)


def full_spool(fleet: Fleet) -> None:
    settings = AgentSettings(DEVICE, spool_bytes_max=1)
    fleet.checkers.caps.check_spool(
        settings, fleet.spools[DEVICE], SpoolCommit([msgspec.structs.replace(first_batch(fleet), count=1)])
    )


def claims_in_spool(fleet: Fleet, count: int) -> None:
    settings = AgentSettings(DEVICE, spool_bytes_max=1)
    claim = msgspec.structs.replace(first_batch(fleet), count=1, rows=((1, CLAIMS, 1),))
    spool, held = fleet.spools[DEVICE], fleet.spools[DEVICE].batches
    spool.batches = dict.fromkeys(range(count), claim)
    try:
        fleet.checkers.caps.check_spool(settings, spool, SpoolCommit([claim]))
    finally:
        spool.batches = held


def overfull_spool(fleet: Fleet) -> None:
    settings = AgentSettings(DEVICE, spool_bytes_max=1, policy=Policy.DROP_NEWEST)
    spool = fleet.spools[DEVICE]
    batch = first_batch(fleet)
    spool.batches[10**6] = msgspec.structs.replace(batch, body=bytes(10_000))
    fleet.checkers.caps.check_spool(settings, spool, SpoolCommit([batch]))


def too_many(fleet: Fleet) -> None:
    fleet.checkers.caps.watch("someone", lambda: [("things", 2, 1)])
    commit(fleet)


@pytest.mark.parametrize(
    ("tamper", "rule"),
    [
        (lambda fleet: ack(fleet, 10**6), "acked <= durable"),
        (lambda fleet: fleet.spools[DEVICE].on_trim(fleet.spools[DEVICE].epoch, 10**6), "trimmed <= acked"),
        (two_contents, "one content"),
        (foreign_digest, "one content"),
        (lambda fleet: send(fleet, first_batch(fleet), UP.replace(DEVICE, "device-2")), "identity"),
        (cursor_back, "cursor"),
        (closed_back, "cursor"),
        (lambda fleet: commit(fleet, an_entry(fleet, segment="segments/none-1.arrow")), "named => durable"),
        (lambda fleet: commit(fleet, an_entry(fleet, number=10**6)), "positions"),
        (clock_back, "clock"),
        (clock_ahead, "clock"),
        (ended_by_nobody, "clock"),
        (ends_what_it_lacks, "watermark"),
        (taken_twice, "one birth"),
        (watermark_back, "watermark"),
        (orphan, "no orphans"),
        (full_spool, "caps"),
        (lambda fleet: claims_in_spool(fleet, CLAIMS_MAX + 1), "caps"),
        (overfull_spool, "caps"),
        (too_many, "caps"),
        (rows_of_no_plan, "channels"),
        (lambda fleet: said(fleet, UP, b"no batch"), "wire"),
        (lambda fleet: send(fleet, first_batch(fleet), UP.replace(DEVICE, "device-9")), "identity"),
        (lambda fleet: orphan(fleet, "odd"), "segments"),
    ],
)
def test_a_rule_of_every_step_is_broken_at_once(tamper: Tamper, rule: str) -> None:
    assert at_once(tamper) == rule


def test_a_claim_does_not_wait_for_room() -> None:
    assert at_once(lambda fleet: claims_in_spool(fleet, CLAIMS_MAX)) == ""


@pytest.mark.parametrize(("acked", "rule"), [(10**6, ""), (10**6 + 1, "acked <= durable")])
def test_what_is_durable_of_a_closed_epoch_stands_in_its_own_row(acked: int, rule: str) -> None:
    def tamper(fleet: Fleet) -> None:
        right = dict(fleet.checkers.delivery._durable)
        closed_at(fleet, 10**6)
        ack(fleet, acked)
        fleet.checkers.delivery._durable = right  # the epoch goes on

    assert at_once(tamper) == rule


def test_what_is_sent_must_have_been_committed() -> None:
    def hide(fleet: Fleet) -> None:
        batch = first_batch(fleet)
        fleet.spools[DEVICE].last_seq = batch.seq - 1
        send(fleet, batch)

    assert at_once(hide) == "sent <= committed"


@pytest.mark.parametrize(
    ("wait_s", "packets", "rule"), [(10_000, 1, "drained in time"), (1, 10_000, "few packets")]
)
def test_a_spool_that_empties_late_or_with_a_storm_breaks_a_rule(
    wait_s: float, packets: int, rule: str
) -> None:
    world, broken = World(0), list[str]()

    def breach(rule: str, detail: str) -> None:
        broken.append(rule)

    drain = Drain(breach, world)  # type: ignore[arg-type]
    world.note("ingest", "kill")
    drain.fed(DEVICE, 3, 2)
    for _ in range(packets):
        drain.sent(DEVICE, 5)

    world.loop.call_at(wait_s, drain.emptied, DEVICE)
    world.loop.call_at(wait_s, world.loop.stop)
    world.loop.run_forever()
    world.close()
    assert broken == [rule]


# At the end


def rows_of(fleet: Fleet, channel: str) -> Entry:
    """The first entry of a channel with at least two rows."""
    return next(e for e in fleet.ledger.entries[FLOW, 0] if e.channel == channel and e.count > 1)


def rewrite(fleet: Fleet, change: Callable[[list[LoggedRow]], Sequence[LoggedRow]]) -> None:
    """Put other rows into an entry of rows."""
    entry = rows_of(fleet, CHANNEL)
    data = fleet.platter.read(entry.segment)
    schema_id, _ = msgspec.msgpack.decode(data)
    rows = decode_plain(data)
    start, end = entry.first_row, entry.first_row + entry.count
    rows[start:end] = change(rows[start:end])
    fleet.platter.put(entry.segment, msgspec.msgpack.encode((schema_id, rows)))


def without_rows(fleet: Fleet) -> None:
    entries = fleet.ledger.entries[FLOW, 0]
    entry = rows_of(fleet, CHANNEL)
    entries[entry.number - 1] = replace(entry, segment="", count=0)


def more(fleet: Fleet, entry: Entry) -> None:
    fleet.ledger.entries[entry.flow, 0].append(entry)


def count_more(name: str) -> Tamper:
    def tamper(fleet: Fleet) -> None:
        fleet.ledger.counters[name] = fleet.ledger.counters.get(name, 0) + 1

    return tamper


def dropped(fleet: Fleet) -> None:
    reason = make_reason(EntryCode.DEVICE_DROPPED, count=1, before=1)
    place = {"kind": EntryKind.DROPPED, "channel": CHANNEL, "device": DEVICE}
    more(fleet, an_entry(fleet, **place, reason=reason))


def quarantined(fleet: Fleet) -> None:
    sent = fleet.checkers.delivery._contents[DEVICE, FLOW, fleet.spools[DEVICE].epoch]
    envelope = next(one for one in sent.values() if decode_header(one.header).channel == CHANNEL)
    header, payload = decode_header(envelope.header), encode_envelope(envelope)
    place = (DEVICE, FLOW, header.epoch, header.seq, header.count)
    fleet.ledger.quarantined.append(QuarantinedBatch(*place, "why", payload, acked=True))


def agent_counts_more(fleet: Fleet) -> None:
    fleet.spools[DEVICE].counters[f"rows.{CHANNEL}"] += 1


def clock_not_at_its_end(fleet: Fleet) -> None:
    entries = fleet.ledger.entries[FLOW, 0]
    entries[-1] = replace(entries[-1], clocks={SOURCE: 0})


def late(fleet: Fleet) -> None:
    rewrite(fleet, lambda rows: [replace(row, late=True) for row in rows])


def overtaken(fleet: Fleet) -> None:
    rewrite(fleet, lambda rows: [replace(row, overtaken=True) for row in rows])
    fleet.ledger.counters[Counter.RECORDS_OVERTAKEN] = rows_of(fleet, CHANNEL).count


@pytest.mark.parametrize(
    ("tamper", "rule"),
    [
        (without_rows, "I2"),
        (lambda fleet: rewrite(fleet, lambda rows: [rows[0], *rows[:-1]]), "exactly once"),
        (
            lambda fleet: rewrite(
                fleet, lambda rows: [replace(r, row=replace(r.row, fields=())) for r in rows]
            ),
            "exactly once",
        ),
        (lambda fleet: rewrite(fleet, lambda rows: rows[::-1]), "in order"),
        (lambda fleet: rewrite(fleet, lambda rows: [replace(r, device="device-9") for r in rows]), "entry"),
        (late, "in time"),
        (overtaken, "overtaken"),
        (lambda fleet: fleet.platter.remove(rows_of(fleet, CHANNEL).segment), "readable"),
        (dropped, "I2"),
        (quarantined, "I2"),
        (clock_not_at_its_end, "clock"),
        (agent_counts_more, "counters = truth"),
        *(
            (count_more(name), "counters = truth")
            for name in (
                Counter.RECORDS_LOGGED,
                Counter.RECORDS_DROPPED,
                Counter.RECORDS_OVERTAKEN,
                Counter.EPOCHS_OPENED,
                Counter.LOSSES,
                Counter.QUARANTINED_BATCHES,
                Counter.QUARANTINE_BYTES,
                Counter.BATCHES_APPENDED,
                f"rows:{FLOW}/{CHANNEL}",
            )
        ),
    ],
)
def test_a_rule_of_the_end_is_broken_by_what_is_left(tamper: Tamper, rule: str) -> None:
    assert at_the_end(tamper) == rule


def test_a_sink_that_does_not_hold_the_logs_rows_breaks_a_rule() -> None:
    def lose(fleet: Fleet) -> None:
        fleet.spark.sink.rows[0].pop()

    def double(fleet: Fleet) -> None:
        fleet.spark.sink.rows[0].append(fleet.spark.sink.rows[0][0])

    def disorder(fleet: Fleet) -> None:
        fleet.spark.sink.rows[0].sort(key=lambda row: row[0])

    assert at_the_end(lose) == at_the_end(double) == at_the_end(disorder) == "sink = model"


def test_a_sink_that_takes_a_micro_batch_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(
        sink: SinkBook, batch_id: int, positions: object, rows: dict[int, list[tuple[str, LoggedRow]]]
    ) -> bool:
        for partition, more_rows in rows.items():
            sink.rows.setdefault(partition, []).extend(more_rows)
        sink.batch_id, sink.positions = batch_id, positions  # type: ignore[assignment]
        return True

    monkeypatch.setattr(SinkBook, "write", write)
    rules = set()
    for seed in range(20):
        try:
            Fleet(seed).run()
        except ViolationError as error:
            rules.add(error.rule)
    assert rules == {"sink = model"}


# A checker that can make nothing of what it sees


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **options: object) -> None:
        raise type(error)(*error.args)

    return fail


BROKEN: list[tuple[object, str, str]] = [
    (Accepted, "committed", "Checkers._spooled"),
    (Delivery, "committed", "Checkers._committed"),
    (Delivery, "published", "Checkers._published"),
    (Checkers, "_all_logged", "Checkers.check_log"),
    (Fleet, "_check_births", "Fleet.run"),
]


@pytest.mark.parametrize(("owner", "name", "where"), BROKEN, ids=[one[2] for one in BROKEN])
@pytest.mark.parametrize("error", [KeyError("x"), WireError("x"), LedgerError("x"), NetError("x")], ids=repr)
def test_a_checker_that_raises_is_a_violation_that_names_it(
    owner: object, name: str, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Production code stands between: of these it takes some for a broken batch, ledger or connection.
    monkeypatch.setattr(owner, name, fail_with(error))
    result = run_fleet(0, lambda: Fleet(0, size=SMALL))
    told = f"{where} cannot judge this world: {type(error).__name__}: {error}"
    assert (result.rule, result.detail) == ("checker", told)


def test_what_production_raises_is_not_taken_for_a_checkers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "status", fail_with(KeyError("x")))
    monkeypatch.setattr(Ingest, "run", fail_with(KeyError("of ingest")))
    result = run_fleet(0, lambda: Fleet(0, size=SMALL))
    assert (result.rule, result.detail) == ("KeyError", "'of ingest'")
