"""`gear query`: what a running app keeps of a key."""

from __future__ import annotations

import json
from typing import Any

from geartrain.printable import printable
from geartrain.records.event_time import END_OF_TIME, format_time
from geartrain_client.cli.spans import span_words
from geartrain_client.cli.tables import cell
from geartrain_client.rest.answers import KeyState, answer_as
from geartrain_client.rest.platform import TIMEOUT_S, Platform, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of

TIMERS_SHOWN = 3


def query_app(
    platform: Platform,
    app: str,
    step: str,
    key: str | None,
    *,
    device: str | None = None,
    seconds: int,
    as_json: bool,
) -> None:
    """Print the state of a key, or some keys where none is named; raises `GeartrainError`.

    device: the only one to be asked, of a step on devices; seconds: how long the platform waits for a
    micro-batch or for devices.
    """
    path = f"/apps/{segment(app)}/steps/{segment(step)}/state"
    found = platform.get(path, timeout_s=seconds + TIMEOUT_S, key=key, device=device, wait_s=seconds)
    if as_json:
        print_json(found)
        return
    answer = answer_as(KeyState, found)
    if key is None:
        _print_keys(answer)
    elif not answer.found:
        notices().print(printable(f"{step} keeps nothing of {cell(answer.key)}"), soft_wrap=True)
    else:
        _print_state(answer)
    _print_place(answer)


def _print_keys(answer: KeyState) -> None:
    if not answer.keys:
        notices().print(printable(f"{answer.step} keeps no key yet"), soft_wrap=True)
        return
    results().print(table_of("", ["key"], [[cell(key)] for key in answer.keys]))
    notices().print("some of its keys: name one to see its state", soft_wrap=True)


def _print_state(answer: KeyState) -> None:
    out, state = results(), answer.state
    if isinstance(state, dict):
        out.print(table_of("", ["field", "value"], [[name, cell(value)] for name, value in state.items()]))
    elif state is not None:
        out.print(printable(cell(state)), soft_wrap=True)
    if answer.windows:
        names = _fields([one.result for one in answer.windows])
        lines = [
            [_time(one.start_us), _time(one.end_us), *_cells(one.result, names)] for one in answer.windows
        ]
        out.print(table_of("Open windows", ["from", "to", *(names or ["so far"])], lines))
    if answer.timers_us:
        times = [_time(at) for at in answer.timers_us[:TIMERS_SHOWN]]
        more = len(answer.timers_us) - len(times)
        then = f", then {', '.join(times[1:])}" if times[1:] else ""
        out.print(f"next timer: {times[0]}{then}{f' and {more} more' if more else ''}", soft_wrap=True)
    if answer.forgets_us is not None:
        out.print(f"forgotten at: {_time(answer.forgets_us)}, unless it is called again", soft_wrap=True)


def _fields(results_: list[Any]) -> list[str]:
    """The columns of records, none for other values."""
    first = results_[0]
    return list(first) if isinstance(first, dict) else []


def _cells(result: Any, names: list[str]) -> list[str]:
    if not names or not isinstance(result, dict):
        return [cell(result)]
    return [cell(result.get(name)) for name in names]


def _print_place(answer: KeyState) -> None:
    """When that was: in event time, and in the log."""
    out = results()
    clock = answer.clock_us
    if clock is None:
        out.print("clock: not yet", soft_wrap=True)
    elif clock >= END_OF_TIME:
        out.print("clock: ended", soft_wrap=True)
    else:
        out.print(f"clock: {format_time(clock)}, {_ago(answer.answered_us - clock)}", soft_wrap=True)
    for one in answer.silent:
        seen = f"heard last {_ago(answer.answered_us - one.seen_us)}" if one.seen_us else "not heard of yet"
        note = ": this is what it told last" if one.device == answer.device else ""
        notices().print(printable(f"device {one.device} has not answered, {seen}{note}"), soft_wrap=True)
    if answer.device:
        where = f"of {answer.instance} on device {answer.device}: epoch {answer.epoch}, batch {answer.seq}"
        out.print(printable(where), soft_wrap=True)
        return
    run = f", run {answer.run}" if answer.run > 1 else ""
    where = json.dumps(answer.positions)
    out.print(printable(f"positions: {where} of {answer.instance}{run}"), soft_wrap=True)


def _ago(span_us: int) -> str:
    """How long ago something was; clocks are of event time, which may lie years back."""
    return f"{span_words(max(0.0, span_us / 1e6))} ago"


def _time(at_us: int) -> str:
    return "the end" if at_us >= END_OF_TIME else format_time(at_us)
