"""`gear-sim`: simulated worlds from the command line, by the thousand or one at a time.

Results go to stdout, progress to stderr and only to a terminal. The exit code is 0 where every rule held, 1
where one was broken or a planted fault was not found, and 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import msgspec

from geartrain.printable import printable
from geartrain_edge.agent.process import GARBAGE_THRESHOLD
from geartrain_simulation.campaign.campaign import Report, run_seeds
from geartrain_simulation.campaign.planting import BrokenRunError, Kill, first_kill
from geartrain_simulation.campaign.regressions import Case, drawn, keep, load, shrunk
from geartrain_simulation.campaign.runs import USUAL, WORLDS, Key, Result, current_key, run_seed
from geartrain_simulation.machine.trace import LINES_KEPT

GOOD, BROKEN, WRONG = 0, 1, 2
SEED_MAX = 2**63 - 1
SHRUNK_MAX = 3
"""Of the broken seeds so many are shrunk: the others mostly have the same cause."""
REGRESSIONS = Path("tests/simulation/regressions.json")
MUTANTS = "tests.mutants"
"""The module of the planted faults, which stand in the source tree and are not installed."""

EXAMPLES = """examples:
  gear-sim --seeds 1000                 a thousand worlds on all cores
  gear-sim --seeds 500 --from 10000     other ones
  gear-sim --seed 4711 --trace          one of them, with all that happens in it
  gear-sim --world roster --seeds 100   worlds in which apps and devices come and go
  gear-sim --world lane --seed 7        one of desired state on its way to devices
  gear-sim --mutants                    whether planted faults are found, and by which seed
  gear-sim --mutants crossing           those with this word in their names
  gear-sim --regressions                what was found once, run again

A run depends on its seed, the commit and the minor version of Python, and on nothing else: the same three
give the same trace. One seed in a hundred is run twice, in another process, to see that this holds.

Worlds: fleet, devices that send to one flow, with all kinds of faults; roster, ingest that follows apps and
devices; lane, control and the desired state of devices; down, streams back to devices; bundles, code that
comes over the air, fails or stays; programs, the agent itself exchanged over the air; floor, disks that
others fill; denied, devices that the broker does not accept for a while; crossing, devices that go over to
another cut; revision, devices that go over to other steps; claiming, devices that take a step from the cloud;
dropping, the same while an update has that step begin empty.
What breaks a rule is shrunk and kept in worlds of fleets only."""


def main(words: Sequence[str] | None = None) -> int:
    """Run what the words of the command line ask for; returns the exit status."""
    options = _parser().parse_args(words)
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        return _run(options)
    except KeyboardInterrupt:
        sys.stderr.write("\ngear-sim: interrupted\n")
        return 130
    except (OSError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"gear-sim: {options.keep} cannot be used as a regression file: {error}\n")
        return WRONG


def _run(options: argparse.Namespace) -> int:
    if options.mutants is not None:
        return _mutants(options.mutants, as_json=options.json)
    if options.regressions:
        return _regressions(options.keep, as_json=options.json)
    if options.seed is not None:
        return _one(options.seed, options.world, with_trace=options.trace, as_json=options.json)
    return _many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gear-sim",
        description="Run agents, ingest and a reader in simulated worlds full of faults, and check what must "
        "always hold.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", type=_count, metavar="N", help="run N seeds")
    what.add_argument("--seed", type=_seed, metavar="N", help="run one seed, and say what it was like")
    what.add_argument(
        "--mutants",
        nargs="?",
        const="",
        metavar="WORD",
        help="plant each fault (with this word in its name), and name the seed that finds it; in a checkout",
    )
    what.add_argument("--regressions", action="store_true", help="run all cases of the regression file")
    parser.add_argument(
        "--world", choices=sorted(WORLDS), default=USUAL, help=f"the kind of worlds for seeds ({USUAL})"
    )
    parser.add_argument("--from", dest="first", type=_seed, default=0, metavar="S", help="the first seed (0)")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened, step by step")
    parser.add_argument("--workers", type=_count, metavar="N", help="processes (one for each core)")
    parser.add_argument(
        "--keep",
        type=Path,
        default=REGRESSIONS,
        metavar="FILE",
        help=f"where shrunk failures are kept ({REGRESSIONS}, if its folder is there)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def _count(word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= SEED_MAX:
        raise argparse.ArgumentTypeError(f"{printable(word)!r} is no number from 1 on")
    return int(word)


def _seed(word: str) -> int:
    if not word.isdecimal() or int(word) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"{printable(word)!r} is no seed: give a number from 0 on")
    return int(word)


# Many seeds


def _many(options: argparse.Namespace) -> int:
    show = _progress(options.seeds)
    report = run_seeds(
        options.first, options.seeds, kind=options.world, workers=options.workers, progress=show
    )
    broken = report.violations[:SHRUNK_MAX] if options.world == USUAL else []
    cases = [shrunk(result) for result in broken]
    kept = keep(options.keep, cases) if cases and options.keep.parent.is_dir() else 0
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    if options.json:
        _print_json(_as_json(report, cases))
    else:
        _print_report(report, cases, kept, options.keep)
    return GOOD if report.is_good else BROKEN


def _progress(count: int) -> Callable[[int, int], None]:
    started_s = time.monotonic()

    def show(done: int, broken: int) -> None:
        if sys.stderr.isatty():
            took_s = time.monotonic() - started_s
            left_s = took_s / done * (count - done)
            text = f"{done:,} of {count:,} seeds, {broken} broken, {took_s:.0f} s, about {left_s:.0f} s to go"
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()

    return show


def _as_json(report: Report, cases: Sequence[Case]) -> dict[str, object]:
    return {
        **{name: value for name, value in asdict(report).items() if name != "violations"},
        "is_good": report.is_good,
        "violations": [
            {"seed": one.seed, "rule": one.rule, "detail": one.detail} for one in report.violations
        ],
        "shrunk": [msgspec.to_builtins(case) for case in cases],
    }


def _print_report(report: Report, cases: Sequence[Case], kept: int, file: Path) -> None:
    for one in report.violations:
        _print(f"{one.seed:>12}  {one.rule}: {one.detail}")
    for case in cases:
        _print(f"seed {case.seed} breaks '{case.rule}' with no more than this:")
        for part in (*case.devices, *case.faults):
            _print(f"    {part}")
    if kept:
        _print(f"{kept} new in {file}; gear-sim --seed N --trace shows a run")
    for seed in report.differ:
        _print(f"{seed:>12}  left another trace when it was run again")
    last = report.first + report.asked - 1
    rate = report.done / report.seconds if report.seconds else 0.0
    _print(
        f"{report.done:,} of {report.asked:,} seeds ({report.first} to {last}) in {report.seconds:.0f} s "
        f"({rate:.0f} a second), {_name(report.key)}"
    )
    _print(
        f"{len(report.violations)} broken; {len(report.repeated)} run twice, {len(report.differ)} of them "
        "with another trace"
    )
    _print(
        f"{report.virtual_s / 3_600:,.1f} virtual hours, {report.steps:,} steps, {report.crashes:,} crashes, "
        f"{sum(report.faults.values()):,} faults of the network"
    )


# One seed


def _one(seed: int, world: str, *, with_trace: bool, as_json: bool) -> int:
    result = run_seed(seed, world, LINES_KEPT if with_trace else 0)
    if as_json:
        _print_json({"key": asdict(current_key()), **asdict(result)})
        return GOOD if result.is_good else BROKEN
    for line in result.tail:
        _print(line)
    if world == USUAL:
        case = drawn(seed)
        for part in (*case.devices, *case.faults):
            _print(f"    {part}")
    _print_result(result)
    return GOOD if result.is_good else BROKEN


def _print_result(result: Result) -> None:
    _print(f"seed {result.seed}, {_name(current_key())}, trace {result.digest}")
    if result.is_good:
        _print(
            f"every rule held: {result.virtual_s:.1f} virtual s, {result.steps:,} steps, "
            f"{result.crashes} crashes"
        )
    else:
        _print(f"broken: {result.rule}: {result.detail}")


# Planted faults, and what was found


def _mutants(word: str, *, as_json: bool) -> int:
    if (planted := _planted()) is None:
        sys.stderr.write(
            "gear-sim: planted faults are not installed: they stand in tests/mutants of Geartrain's source "
            "code, and gear-sim --mutants of a checkout's own .venv plants them\n"
        )
        return WRONG
    names = [name for name in planted.MUTANTS if word in name]
    if not names:
        sys.stderr.write(f"gear-sim: no planted fault has {printable(word)!r} in its name\n")
        return WRONG
    kills, broken = dict[str, Kill | None](), dict[str, str]()
    with ProcessPoolExecutor() as pool:
        for name, (kill, fault) in zip(names, pool.map(_kill, names), strict=True):
            kills[name] = kill
            if fault:
                broken[name] = fault
            if not as_json:
                shown = (
                    f"seed {kill.seed:<4} {kill.how}"
                    if kill
                    else f"BROKEN   {fault}"
                    if fault
                    else "SURVIVES"
                )
                _print(f"{name:40} {shown}"[:150])
    for fault in broken.values():
        sys.stderr.write(f"gear-sim: a run ended in an error that no checker reported: {fault}\n")
    if as_json:
        _print_json({name: None if kill is None else asdict(kill) for name, kill in kills.items()})
    survivors = sum(kill is None for kill in kills.values())
    if not as_json:
        _print(f"{len(kills)} planted faults, {survivors} not found; {_name(current_key())}")
    return BROKEN if survivors else GOOD


def _planted() -> ModuleType | None:
    """The module of the planted faults; None where this is no checkout."""
    checkout = Path(__file__).parents[2]
    if not checkout.joinpath(*MUTANTS.split(".")).is_dir():
        return None
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return importlib.import_module(MUTANTS)


def _kill(name: str) -> tuple[Kill | None, str]:
    """The seed that shows a fault; and the error of a run that no checker reported, empty for none."""
    planted = _planted()
    assert planted is not None, "a name is one of those that are planted"
    try:
        return first_kill(planted.MUTANTS[name], planted.seeds_for(name)), ""
    except BrokenRunError as error:
        return None, str(error)


def _regressions(file: Path, *, as_json: bool) -> int:
    results = [(case, case.run()) for case in load(file)]
    if as_json:
        _print_json([asdict(result) for _, result in results])
    else:
        for case, result in results:
            _print(f"{case.seed:>12}  {'good' if result.is_good else f'{result.rule}: {result.detail}'}")
        _print(f"{len(results)} cases of {file}; {_name(current_key())}")
    return GOOD if all(result.is_good for _, result in results) else BROKEN


def _name(key: Key) -> str:
    return f"commit {key.commit or 'unknown'}, Python {key.python}"


def _print(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
