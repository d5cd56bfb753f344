"""`gear list`, `info`, `logs`, `kill`, `replay` and `resume`: the apps of a platform."""

from __future__ import annotations

from typing import Any

from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME, format_time
from geartrain_client.cli.spans import span_words
from geartrain_client.cli.waiting import until_ended, until_purged, until_runs, wait_until
from geartrain_client.rest.answers import App, AppInfo, Applied, Cost, Line, Retention, Skew, answer_as
from geartrain_client.rest.platform import Platform, items_of, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of

HELD_SHOWN = 3
_RUNS = ("running", "draining")


def list_apps(platform: Platform, *, as_json: bool) -> None:
    """Print every app; raises `GeartrainError`."""
    found = list(platform.items("/apps"))
    if as_json:
        print_json(found)
        return
    apps = [answer_as(App, one) for one in found]
    if not apps:
        results().print("no app was submitted yet: gear submit MODULE:FLOW")
        return
    heads = ["app", "instance", "state", "wanted", "applied", "in contact", "cut", "flow", "revision", "why"]
    lines = [
        [
            app.name,
            app.instance,
            app.state,
            app.wanted,
            f"{app.devices.applied}/{app.devices.assigned}",
            str(app.devices.online),
            _cuts(app),
            app.flow,
            app.revision[:12],
            app.why,
        ]
        for app in apps
    ]
    results().print(table_of("", heads, lines, numbers=(4, 5)))


def show_app(platform: Platform, name: str, *, as_json: bool) -> None:
    """Print all that is known of an app; raises `GeartrainError`."""
    found = platform.get(f"/apps/{segment(name)}")
    if as_json:
        print_json(found)
        return
    app, out = answer_as(AppInfo, found), results()
    counts = app.devices
    facts = {
        "instance": app.instance,
        "state": app.state + (f", wanted {app.wanted}" if app.wanted and app.wanted != app.state else ""),
        "why": app.why,
        "flow": app.flow,
        "revision": app.revision,
        "revision number": _crossing(app),
        "revision, devices": _behind(app),
        "canary": _canary(app),
        "code": f"{app.code[:12]}, {'signed' if app.bundled else 'installed there'}" if app.code else "",
        "query": {"own": "its own", "shared": "shared"}.get(app.isolation, app.isolation),
        "slots": _slots(app),
        "devices": f"applied by {counts.applied} of {counts.assigned}, {counts.online} in contact",
        **{f"rate, {hop}": _number(rate) for hop, rate in app.rates.items()},
        "link": _a_day(app.cost.link_bytes_per_day, app.cost.span_s),
        "log": _log(app.retention),
        "disk": _disk(app.cost),
        "kept in the log": _kept(app.retention),
        "kept in tables": _kept_tables(app.retention),
        "cut": _cuts(app),
        "cut, to come": _recut(app),
        "cut, adaptive": f"on {app.adaptive.devices:,} devices" if app.adaptive else "",
        "lag": _number(app.lag),
        "dead letters": _number(app.dead_letters),
        "tables": app.tables,
        "files": ", ".join(app.files),
    }
    for fact, text in facts.items():
        if text:
            out.print(printable(f"{fact}: {text}"), soft_wrap=True)
    for sentence in _said(app):
        out.print(printable(sentence), soft_wrap=True)
    if app.adaptive and app.adaptive.moves:
        lines = [[_time(one.at_us), one.device, one.cut, one.before, one.why] for one in app.adaptive.moves]
        out.print(table_of("Moves of adaptive cuts", ["time", "device", "cut", "was", "why"], lines))
    if app.notes:
        lines = [[one.table, one.field, one.unit, one.description] for one in app.notes]
        out.print(table_of("Fields", ["table", "field", "unit", "description"], lines))
    if app.clocks:
        lines = [[one.source, _time(one.clock_us), _few(one.held_by)] for one in app.clocks]
        out.print(table_of("Clocks", ["source", "event time", "held by"], lines))
    if app.skew:
        heads = ["keyed by", "hottest slot", "its rows", "keys with most rows"]
        lines = [[one.step, f"{one.slot} of {one.slots}", f"{one.share:.0%}", _keys(one)] for one in app.skew]
        out.print(table_of("Keys", heads, lines, numbers=(2,)))
    if app.applied:
        lines = [[one.device, one.state, _number(one.serial), one.cut, _why(one)] for one in app.applied]
        out.print(table_of("Devices", ["device", "state", "serial", "cut", "why"], lines, numbers=(2,)))


def _said(app: AppInfo) -> list[str]:
    """What an app lacks, a line each: what was not taken in, what nobody reads, what it waits for."""
    return [
        *(
            f"{one.cells:,} keys of step {one.step}: {one.reason}; see gear deadletters ls"
            for one in app.refused_state or ()
        ),
        *(
            f"not read: {rows:,} rows of channel {channel}, which no step reads since a revision"
            for channel, rows in app.unread_rows.items()
        ),
        *(f"waits for: {sentence}" for sentence in app.waits_for),
    ]


def _log(kept: Retention) -> str:
    came = _a_day(kept.log_bytes_per_day, kept.log_span_s)
    return f"{kept.log_bytes:,} bytes" + (came and f", {came}")


def _a_day(count: float | None, span_s: float | None) -> str:
    if count is None or span_s is None:
        return ""
    return f"{count:,.0f} bytes a day, by the last {span_words(span_s)}"


def _disk(cost: Cost) -> str:
    per_day = cost.disk_bytes_per_day
    grows = _a_day(None if per_day is None else abs(per_day), cost.span_s)
    verb = "shrinks by" if per_day is not None and per_day < 0 else "grows"
    free = "" if cost.disk_free_bytes is None else f"; {cost.disk_free_bytes:,} are free"
    full = (
        ""
        if cost.days_to_full is None
        else f", which all programs here use up in {cost.days_to_full:,.3g} days"
    )
    return f"{cost.disk_bytes:,} bytes" + (grows and f", {verb} {grows}") + free + full


def _kept(kept: Retention) -> str:
    age = _age(kept.age_s)
    size = f"{kept.bytes:,} bytes" if kept.bytes else ""
    if size and kept.days_to_limit is not None:
        size += (
            f", which are reached in {kept.days_to_limit:,.1f} days" if kept.days_to_limit else ", reached"
        )
    return " and ".join(filter(None, (age, size)))


def _age(age_s: float | None) -> str:
    units = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    return next((f"{age_s / size:,.6g} {unit}" for unit, size in units if age_s >= size), "") if age_s else ""


def _kept_tables(kept: Retention) -> str:
    gone = f", {kept.tables_removed:,} rows have gone" if kept.tables_removed else ""
    return _age(kept.tables_age_s) + gone


def retain_app(
    platform: Platform,
    name: str,
    age_s: float | None,
    size: int | None,
    tables_age_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Have the rows of an app stay in the log, and in tables, so long; None: as before.

    Raises `GeartrainError`.
    """
    wanted = {"age_s": age_s, "bytes": size, "tables_age_s": tables_age_s}
    body = {key: value for key, value in wanted.items() if value is not None}
    if not body:
        raise ConfigError(
            "gear retain: say how long rows stay: --age 30d, --size 2GB, --tables 90d, or several of these"
        )
    answer = platform.change("POST", f"/apps/{segment(name)}/retain", body)
    if as_json:
        print_json(answer)
        return
    made = Retention(answer["age_s"], answer["bytes"], tables_age_s=answer["tables_age_s"])
    for place, limit in (("the log", _kept(made)), ("tables", _age(made.tables_age_s))):
        said = limit or "as long as the platform's configuration says"
        results().print(printable(f"rows of {answer['instance']} stay in {place}: {said}"), soft_wrap=True)


def _cuts(app: App) -> str:
    """The cuts of an app's devices; how many have each, where there are several."""
    if len(app.cuts) == 1:
        return app.cuts[0].cut
    shown = ", ".join(f"{one.cut} on {one.devices:,}" for one in app.cuts[:HELD_SHOWN])
    return shown + (f" and {len(app.cuts) - HELD_SHOWN:,} more" if len(app.cuts) > HELD_SHOWN else "")


def _recut(app: AppInfo) -> str:
    change = app.cut_change
    return f"for {change.count:,} devices, with revision {change.number}" if change else ""


def _keys(skew: Skew) -> str:
    return ", ".join(f"{one.key} {one.share:.0%}" for one in skew.keys)


def _slots(app: AppInfo) -> str:
    if app.slots_now is None or app.slots_now == app.slots:
        return _number(app.slots_now)
    return f"{app.slots_now}, going over to {app.slots}"


def _crossing(app: AppInfo) -> str:
    """Which of its revisions an app runs, and how far the next one is; "" for one that has but the first."""
    change = app.change
    if change is None:
        return f"{app.number}, in force" if app.number > 1 else ""
    why = f": {change.why}" if change.why else ""
    return f"{change.number - 1}, in force; revision {change.number} is {change.stage}{why}"


def _canary(app: AppInfo) -> str:
    """How the app's canary stands, or how its last one has ended; "" where it has had none."""
    one = app.canary
    if one is None:
        return ""
    if one.stage in ("promoted", "went back"):
        return f"revision {one.number} {one.stage}: {one.why}"
    if one.until_us is None:
        return f"revision {one.number} waits for its number, for {_few(one.devices)}"
    there = f"{one.crossed:,} of {one.count:,} devices ({_few(one.devices)})"
    return f"revision {one.number} runs on {there}, until {_time(one.until_us)}"


def _behind(app: AppInfo) -> str:
    """How many devices have gone over to the newest revision, and which have not; "" where all have."""
    behind = app.crossing
    if behind is None:
        return ""
    return (
        f"{behind.of - behind.count:,} of {behind.of:,} have gone over to {behind.number}; not yet "
        f"{_few(behind.devices)}"
    )


def _why(one: Applied) -> str:
    """What a device says, and which sources it lacks."""
    lacks = f"lacks {_few(one.lacks)}" if one.lacks else ""
    cut = "" if one.cut_applied or one.state not in _RUNS else "does not run with this cut yet"
    return "; ".join(text for text in (one.why, lacks, cut) if text)


def show_logs(platform: Platform, name: str, lines: int, *, as_json: bool) -> None:
    """Print the last lines of the processes that run an app; raises `GeartrainError`."""
    found = items_of(platform.get(f"/apps/{segment(name)}/logs", lines=lines))
    if as_json:
        print_json(found)
        return
    out = results()
    for one in (answer_as(Line, item) for item in found):
        out.print(printable(f"{one.process}  {one.line}"), soft_wrap=True)


def kill_app(
    platform: Platform, name: str, mode: str, *, purge: bool, seconds: float | None, as_json: bool
) -> None:
    """Kill an app, and wait for its end if asked for; raises `GeartrainError`."""
    path = f"/apps/{segment(name)}"
    instance = answer_as(App, platform.get(path)).instance
    answer = platform.change("POST", f"{path}/kill", {"mode": mode, "purge": purge})
    if seconds is not None:
        wait_until(platform, name, (until_purged if purge else until_ended)(instance), seconds)
    if as_json:
        print_json(answer)
    elif seconds is None:
        notices().print(
            printable(f"{instance} will be killed ({mode}): see gear info {name}"), soft_wrap=True
        )
    else:
        gone = "; its tables are gone" if purge else "; its tables stay"
        results().print(printable(f"{instance} has ended{gone}"), soft_wrap=True)


def replay_app(platform: Platform, name: str, *, as_json: bool) -> None:
    """Begin a new run of an app from the beginning of its log; raises `GeartrainError`."""
    answer = platform.change("POST", f"/apps/{segment(name)}/replay", {"from": "beginning"})
    if as_json:
        print_json(answer)
        return
    run = answer.get("run") if isinstance(answer, dict) else None
    results().print(
        printable(
            f"{name}: run {run} begins at the beginning of the log; the tables of the former run are served "
            "until it has caught up"
        ),
        soft_wrap=True,
    )


def resume_app(platform: Platform, name: str, *, seconds: float | None, as_json: bool) -> None:
    """Have an app that has failed go on, and wait until it runs if asked for; raises `GeartrainError`."""
    path = f"/apps/{segment(name)}"
    instance = answer_as(App, platform.get(path)).instance
    answer = platform.change("POST", f"{path}/resume", {})
    if seconds is not None:
        wait_until(platform, name, until_runs(instance), seconds)
    if as_json:
        print_json(answer)
    elif seconds is None:
        notices().print(printable(f"{instance} will be resumed: see gear info {name}"), soft_wrap=True)
    else:
        results().print(printable(f"{instance} runs"), soft_wrap=True)


def _number(value: Any) -> str:
    if value is None or value == "" or isinstance(value, bool):
        return "" if value in (None, "") else str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(one)}" for name, one in value.items())
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.4g}"
        if isinstance(value, float)
        else str(value)
    )


def _time(clock_us: int | None) -> str:
    if clock_us is None or clock_us <= START_OF_TIME:
        return "not yet"
    return "ended" if clock_us >= END_OF_TIME else format_time(clock_us)


def _few(names: list[str]) -> str:
    more = "" if len(names) <= HELD_SHOWN else f" and {len(names) - HELD_SHOWN:,} more"
    return ", ".join(names[:HELD_SHOWN]) + more
