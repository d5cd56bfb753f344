"""Every planted fault is found: else the simulator proves nothing by finding none in the real code."""

from __future__ import annotations

import pytest

from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.machine.trace import Trace
from geartrain_simulation.mutants import MUTANTS, Mutant, first_kill, planted
from geartrain_simulation.mutants.of_ingest import channel_named_late, schema_told_late
from geartrain_simulation.mutants.planting import FOUND, Patches

pytestmark = pytest.mark.slow

RULES: dict[str, str | tuple[str, ...]] = {
    "trim on puback": "trimmed <= acked",
    "send before commit": "sent <= committed",
    "ack before fsync": "acked <= durable",
    "ack before ledger": "acked <= durable",
    "ledger before segment": "named => durable",
    "ledger before fsync": "named => durable",
    "no fsync": "named => durable",
    "snapshot without position": "watermark",
    "split maximum not in the snapshot": "watermark",
    "orphan segment kept": "no orphans",
    "watermark ahead of data": ("in time", "clock"),
    "dedup per seq only": "acked <= durable",
    "fresh epoch from position 0": "goes on",
    "end of a source that it lacks": "watermark",
    "clock of the first": "in time",
    "clock by channel": "clock",
    "overtaken by the furthest source": "overtaken",
    "overtaken by the channel's last entry": "overtaken",
    "source that nobody has ends": "clock",
    "order between channels lost": "sink = model",
    "drop_oldest undeclared": "I2",
    "dropped seq counted though durable": "I2",
    "floor not asked": "floor",
    "floor asked once": "floor",
    "excluded device not readmitted": "readmitted",
    "advance entry missing": "clock",
    "merge deletes a file in use": "readable",
    "unknown channel acked": "held",
    "submitted schema not compared": "held",
    "taken behind the last entry": "ended",
    "members forgotten at a begin": "moves",
    "clock not moved by who comes back": "clock",
    "watermarks of a retired device forgotten": "clock",
    "unreadable roster ends ingest": "never restarted",
    "sources that a device lacks not said": "reported",
    "program that runs not said": "reported",
    "program that cannot run not said": "reported",
    "program that went back not said": "reported",
    "start of a program not counted": "bounded tries",
    "silent program taken for one that works": "proved => heard",
    "damaged program started": "starts => whole",
    "former program let go while it is needed": "in use stay",
    "program that went back tried again": "bounded tries",
    "device does not say that its program went back": "said",
    "way back to the installed program not gone": "settled",
    "desired state applied before it is kept": "applied => kept",
    "lower serial applied": "once, in order",
    "desired state applied twice": "once, in order",
    "desired state of another connection applied": "of this connection",
    "serial forgotten at a start": "control gone",
    "report answered before it is stored": "answered => stored",
    "older report taken for a newer one": "reports in order",
    "restored control store not refused": "refused",
    "desired state sent once": "reached",
    "report sent once": "reported",
    "life not renewed after a restore": "reached",
    "control lane subscribes once": "reached",
    "process of an app not awaited": ("one process an app", "runs what is wanted"),
    "apps end when control is gone": "control gone",
    "down outbox of another app": "of its app",
    "down taken out of order": "each once, in order",
    "down trimmed without digest check": "each once, in order",
    "down trimmed on puback": "trimmed <= acked",
    "down acked before commit": "acked <= durable",
    "down applied twice": "each once, in order",
    "down sent before commit": "sent <= committed",
    "file not cut off": "each once, in order",
    "clock of 1970 believed": "marked",
    "timed reads not deleted": "one birth",
    "earlier boot timed by this one's clock": "order of birth",
    "times set in another order": "order of birth",
    "timed at their release": "order of birth",
    "set time not marked": "marked",
    "watermark ahead of untimed reads": "order of birth",
}
"""Where the harm is done, and not only where it shows; several where either may see it first."""

SEEN_IN_THE_LOG = (
    *("trim on puback", "ack before fsync", "ledger before fsync", "no fsync"),
    *("positions before batches", "position without snapshot", "gap accepted", "no dedup"),
)
"""What the end shows by itself."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    kill = first_kill(MUTANTS[name])
    assert kill is not None, f"{name} survives"
    if name in RULES:
        rules = RULES[name]
        rules = (rules,) if isinstance(rules, str) else rules
        assert kill.how.startswith(tuple(f"ViolationError: {rule}: " for rule in rules))


@pytest.mark.parametrize("name", SEEN_IN_THE_LOG)
def test_a_planted_fault_is_found_by_what_the_log_holds_in_the_end(name: str) -> None:
    def only_the_end(seed: int) -> None:
        Fleet(seed, every_step=False).run()

    assert first_kill(Mutant(name, MUTANTS[name].plant, only_the_end)) is not None


def test_rows_of_a_channel_that_ingest_is_told_of_late_all_arrive() -> None:
    assert all(channel_named_late(seed) for seed in range(20)), "nothing was held"


def test_what_has_another_schema_than_was_submitted_arrives_once_they_agree() -> None:
    assert all(schema_told_late(seed) for seed in range(10)), "nothing was held"


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 25


def test_what_was_planted_is_gone_afterwards() -> None:
    right = Trace.add

    def plant(patches: Patches) -> None:
        patches.replace(Trace, "add", lambda right: lambda *args: None)

    def fail() -> None:
        assert Trace.add is not right
        raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"), planted(Mutant("no trace", plant)):
        fail()
    assert Trace.add is right


def test_a_mutant_of_what_is_no_longer_there_is_an_error() -> None:
    def plant(patches: Patches) -> None:
        patches.replace(Trace, "gone", lambda right: right)

    with pytest.raises(KeyError, match="gone"), planted(Mutant("of nothing", plant)):
        pass


def test_without_a_fault_there_is_nothing_to_find() -> None:
    assert first_kill(Mutant("none", lambda patches: None), range(20)) is None
    assert AssertionError in FOUND
