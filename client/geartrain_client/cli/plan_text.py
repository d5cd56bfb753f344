"""A plan as text for people: a tree of its steps, its channels, its warnings, and what the cuts cost.

Reads what `gear plan --json` prints, so the two cannot say different things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from geartrain.fleet.selectors import ALL, IN_CLOUD
from geartrain.printable import printable
from geartrain_client.planning.cost import rate
from geartrain_client.terminal.screen import results, table_of

CUTS_MAX = 20
"""Cuts that are listed; the rest is a sentence."""

Described = Mapping[str, Any]


def print_plan(plan: Described) -> None:
    """Print what `describe_plan` gives."""
    out, steps = results(), plan["steps"]
    measured = plan.get("measured")
    edge = sum(step["tier"] == "edge" for step in steps)
    title = f"Flow {plan['flow']}: cut {plan['asked']}, {edge} of {len(steps)} steps on the devices"
    heads = ["step", "kind", "puts out", "tier", "in Spark", "because"]
    lines = [_line(step, text, measured) for step, text in _tree(steps)]
    if measured:
        heads[3:3] = [f"records/{measured['span']}", "µs a record"]
    out.print(table_of(title, heads, lines, numbers=(3, 4) if measured else ()))
    out.print("═╪═ marks the cut: the step behind it reads what comes over the link.")
    _print_types(out, steps)
    _print_channels(out, "Channels: what the devices send", plan["channels"], measured)
    if plan["down"]:
        _print_channels(out, "What comes down to them", plan["down"], measured)
    for text in plan["warnings"]:
        out.print(f"warning: {printable(text)}")
    if measured:
        _print_measured(out, measured)
    elif "estimated" in plan:
        _print_estimated(out, plan["estimated"])
    if "cuts" in plan:
        _print_cuts(out, plan["cuts"], plan["measured"])


def _tree(steps: Sequence[Described]) -> Iterator[tuple[Described, str]]:
    """Each step below its first input, drawn as a branch; below further inputs only its name stands."""
    below: dict[str, list[Described]] = {step["id"]: [] for step in steps}
    for step in steps:
        for above in dict.fromkeys(step["inputs"]):
            below[above].append(step)

    def branch(step: Described, indent: str, above: str | None) -> Iterator[tuple[Described, str]]:
        if above is not None and step["inputs"][0] != above:
            return
        children = below[step["id"]]
        for number, child in enumerate(children):
            last = number == len(children) - 1
            across = child["tier"] != step["tier"]
            mark = ("└" if last else "├") + ("═╪═ " if across else "─── ")
            if child["inputs"][0] != step["id"]:
                yield {}, f"{indent}{mark}({child['id']}, below {child['inputs'][0]})"
                continue
            yield child, f"{indent}{mark}{child['id']}"
            yield from branch(child, indent + ("     " if last else "│    "), step["id"])

    for step in steps:
        if not step["inputs"]:
            yield step, step["id"]
            yield from branch(step, "", None)


def _line(step: Described, text: str, measured: Described | None) -> list[str]:
    if not step:
        return [text, *[""] * (7 if measured else 5)]
    spark = "" if step["stage"] is None else f"stage {step['stage']}, {step['engine']}"
    where = (
        ""
        if step.get("devices", ALL) in (ALL, IN_CLOUD)
        else f"; only devices with {step['devices']} have it"
    )
    cells = [text, step["kind"], step["out"], step["tier"], spark, f"{step['reason']}{where}"]
    if measured:
        known = "records" in step
        cells[3:3] = [
            _per(step["records_per_s"], measured) if known else "",
            f"{step['cpu_us_per_record']:.2f}" if known else "",
        ]
    return cells


def _print_types(out: Console, steps: Sequence[Described]) -> None:
    types = dict.fromkeys((step["out"], _fields(step)) for step in steps if step["out"])
    out.print(table_of("Types", ["type", "fields"], types))
    noted = dict.fromkeys(
        (step["out"], field["name"], field.get("unit", ""), field.get("description", ""))
        for step in steps
        for field in step["fields"]
        if "unit" in field or "description" in field
    )
    if noted:
        out.print(table_of("Fields", ["type", "field", "unit", "description"], noted))


def _fields(described: Described) -> str:
    return ", ".join(f"{field['name']}: {field['type']}" for field in described["fields"])


def _print_channels(
    out: Console, title: str, channels: Sequence[Described], measured: Described | None
) -> None:
    heads = ["channel", "fields", "from"]
    lines = [[c["id"], _fields(c), ", ".join(c["sources"])] for c in channels]
    if measured:
        heads += [f"records/{measured['span']}", "bytes a record", f"bytes/{measured['span']}"]
        for line, c in zip(lines, channels, strict=True):
            line += [
                _per(c["records_per_s"], measured),
                f"{c['bytes_per_record']:.2f}",
                _per(c["bytes_per_s"], measured),
            ]
    out.print(table_of(title, heads, lines, numbers=(3, 4, 5)))


def _print_measured(out: Console, measured: Described) -> None:
    whole = "to the end of its input" if measured["ended"] else "not to the end of its input"
    basis = "at the pace of its sources" if measured["paced"] else "rates are by event time"
    out.print(f"measured: {measured['wall_s']:.1f} s, {whole}; {basis}")
    size, of_cloud = measured["bytes"], measured["cloud_bytes"]
    line = f"This cut sends {rate(measured['bytes_per_s'], 'B', measured['span'])} over the link"
    if of_cloud and size != of_cloud:
        change = 100 * abs(size - of_cloud) / of_cloud
        line += (
            f", {change:.3g} % {'less' if size < of_cloud else 'more'} than with only sources on the devices"
        )
    out.print(f"{line}.")
    line = f"It takes {measured['cpu_share']:.2g} of a core of a device that holds all splits."
    if measured["records_per_s_max"] is not None:
        most = measured["records_per_s_max"]
        line += (
            f" The capacity of {measured['capacity']:g} is enough for {most:,.0f} source records a second."
        )
    out.print(line)


def _print_estimated(out: Console, estimated: Described) -> None:
    sizes = {name: f"{estimated[name]:.3g} B" for name in ("bytes", "edge_bytes", "cloud_bytes")}
    out.print(
        f"estimated: this cut sends {sizes['bytes']} for one record of each source, "
        f"edge {sizes['edge_bytes']}, cloud {sizes['cloud_bytes']}. --measure finds what they really send."
    )


def _per(per_s: float, measured: Described) -> str:
    """A rate in the span of its column."""
    return rate(per_s, "", measured["span"]).split()[0]


def _print_cuts(out: Console, cuts: Sequence[Described], measured: Described) -> None:
    shown = list(cuts[:CUTS_MAX])
    shown += [one for one in cuts[CUTS_MAX:] if one["chosen"]]
    lines = [
        [
            "▶" if one["chosen"] else "",
            _per(one["bytes_per_s"], measured),
            f"{one['bytes']:,}",
            f"{one['cpu_share']:.2g}" + ("" if one["within_capacity"] else " above capacity"),
            "" if one["records_per_s_max"] is None else f"{one['records_per_s_max']:,.0f}",
            one["cut"],
        ]
        for one in shown
    ]
    heads = ["", f"bytes/{measured['span']}", "bytes in all", "edge CPU", "records/s at most", "--cut"]
    out.print(table_of(f"Legal cuts: {len(cuts)}, fewest bytes first", heads, lines, numbers=(1, 2, 3, 4)))
    rest = [one for one in cuts[CUTS_MAX:] if not one["chosen"]]
    if rest:
        low, high = (rate(one["bytes_per_s"], "B", measured["span"]) for one in (rest[0], rest[-1]))
        out.print(f"and {len(rest):,} more, from {low} to {high}: --json lists them all")
