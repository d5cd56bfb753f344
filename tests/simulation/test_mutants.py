"""Every planted fault is found: else the simulator proves nothing by finding none in the real code."""

from __future__ import annotations

import pytest

from geartrain_simulation.campaign.planting import FOUND, Mutant, Patches, first_kill, planted
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.machine.trace import Trace
from tests.mutants import MUTANTS, seeds_for
from tests.mutants.of_ingest import channel_named_late, former_agent_speaks, schema_told_late
from tests.mutants.seeds import FOUND_BY

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
    "denied as often as refused": "seldom",
    "denied without a bound": "let in",
    "denial not said": "said",
    "excluded device not readmitted": "readmitted",
    "advance entry missing": "clock",
    "merge deletes a file in use": "readable",
    "unknown channel acked": "held",
    "submitted schema not compared": "held",
    "other wire version taken": ("wire", "exactly once"),
    "taken behind the last entry": "ended",
    "claims of who leaves kept": "given back",
    "members forgotten at a begin": "moves",
    "device without a source left out": "roster",
    "device without a source forgotten": "moves",
    "device without a source stays": ("roster", "moves"),
    "left before it came": "given back",
    "clock not moved by who comes back": "clock",
    "waited for since ingest began": "patience",
    "waited for since it was assigned before": "patience",
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
    "epoch from before a crossing opened": "cut",
    "crossings forgotten at a start": "crossing",
    "crossing not said": ("cut", "crossing"),
    "crossing shed": "crossing",
    "moved state not sent": "same results",
    "moved state shed": "state kept",
    "moved state behind records": "state first",
    "open claim forgotten at a start": "same results",
    "claim served again after it was taken": "same results",
    "cells given back not taken in": "same results",
    "cells kept by both tiers": "same results",
    "cells of other devices given": "same results",
    "output of cells not handed on": "same results",
    "device reads while it waits for cells": ("in time", "same results"),
    "crossing does not say that cells came": "same results",
    "number of a claim used again": "same results",
    "claims of a lost spool not given back": "same results",
    "set back spool does not say what it knows": "same results",
    "cells of another claim taken": "same results",
    "cells given and forgotten": "same results",
    "cells left out of what is given": "same results",
    "cells said to be there and not written": "same results",
    "claim given up in silence": "same results",
    "claim made again that was too large": "asks no more",
    "form of state not said that a device leaves": "same results",
    "state of later code taken by a device": "same results",
    "state aside not made anew": "same results",
    "state that a device leaves not made anew": "same results",
    "former steps go on behind a crossing": ("exactly once", "steps"),
    "state not kept over a revision": "exactly once",
    "cells of removed steps stay": "exactly once",
    "steps go on that are to begin anew": "exactly once",
    "drops of a revision left out not heeded": "exactly once",
    "forgotten cells stay on the disk": "exactly once",
    "revision not in the commit of a crossing": "one commit",
    "number of a revision not kept": "one commit",
    "crossing in two commits": "one commit",
    "state of the next revision before its crossing": ("announced", "one commit", "forward", "begun"),
    "crossing forgotten in a new epoch": "steps",
    "last records read again behind a crossing": ("boundary", "one birth"),
    "boundary said before its place": "boundary",
    "crossing taken before the cloud": "cloud first",
    "former batch decoded by the newest schema": ("none quarantined", "at least once"),
    "crossing hidden by a gap": "begun",
    "state of another type not made anew": "exactly once",
    "state made anew not written": "exactly once",
    "state of the first layout made anew once": "exactly once",
    "state made anew of a step that begins anew": "exactly once",
    "source that comes taken to be lacking": ("waited for", "in time"),
    "source that comes not heard of": ("readmitted", "waited for"),
    "source that comes begins where the others stand": "exactly once",
    "position of a source that comes not kept": ("watermark", "one birth"),
    "source that goes waited for behind it": "waited for",
    "notes not kept": "notes with rows",
    "notes kept a commit late": "notes with rows",
    "notes of another split": "notes with rows",
    "device goes over unheard": "begun",
    "hello says what is to run": "begun",
    "crossing with the welcome not said": ("steps", "exactly once"),
    "crossing with the welcome before its place": "boundary",
    "fresh spool opened before the cloud": "cloud first",
}
"""Where the harm is done, and not only where it shows; several where either may see it first."""

SEEN_IN_THE_LOG = (
    *("trim on puback", "ack before fsync", "ledger before fsync", "no fsync"),
    *("positions before batches", "position without snapshot", "gap accepted", "no dedup"),
)
"""What the end shows by itself."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    kill = first_kill(MUTANTS[name], seeds_for(name))
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


def test_a_former_agent_is_refused_each_time_and_the_others_are_served() -> None:
    assert all(former_agent_speaks(seed) for seed in range(10)), "nothing was refused"


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 25
    assert FOUND_BY.keys() <= MUTANTS.keys()


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
