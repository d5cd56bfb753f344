"""The commands of `gear` that change an app while it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.app_options import AppName, Timeout, Wait, seconds_of
from geartrain_client.cli.platform_options import Json, SigningKey, State, Url, platform_at

changes_app = typer.Typer(rich_markup_mode=None)

DropState = Annotated[
    list[str] | None,
    typer.Option("--drop-state", metavar="STEP", help="Let a step begin anew; may be repeated."),
]


class Edit(StrEnum):
    """What may become of steps by an update."""

    ATTACH = "attach"
    REPLACE = "replace"
    REMOVE = "remove"


Only = Annotated[
    list[Edit] | None,
    typer.Option("--only", help="Refuse where steps change in any other way; may be repeated."),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain", help="Steps of the data centre that lose their state put out first what they hold."
    ),
]
NewCut = Annotated[
    str,
    typer.Option("--cut", metavar="edge|STEP,...", help="Put these new steps on devices, with all above."),
]
Begin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="now|earliest|TIME",
        help="Where new steps begin to read the log; a time is an event time, by the log's clock.",
    ),
]
NewFlow = Annotated[
    str, typer.Argument(metavar="MODULE:FLOW|FOLDER", help="The app's flow, or its project, as it is now.")
]
NewFlowOrNone = Annotated[
    str,
    typer.Argument(
        metavar="[MODULE:FLOW|FOLDER]",
        help="The app's flow, or its project, as it is now; none with --promote.",
        show_default=False,
    ),
]
CanaryOf = Annotated[
    str,
    typer.Option(
        "--canary", metavar="SELECTOR", help="Have these devices run it first, and the others follow."
    ),
]
CanaryFor = Annotated[
    str,
    typer.Option("--for", metavar="TIME", help="How long these devices are looked at, 10m if absent."),
]
Promote = Annotated[bool, typer.Option("--promote", help="Have all devices follow the app's canary now.")]
DeadLetterOld = Annotated[
    bool,
    typer.Option(
        "--dead-letter-old",
        help="What devices send of a former type becomes dead letters where no upgrade takes it.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would change, and how much state it is about.")
]

_DONE = {Edit.ATTACH: "attached", Edit.REPLACE: "replaced", Edit.REMOVE: "removed"}


@changes_app.command("update", short_help="Have an app go on with other code or other steps.")
def update(
    app: AppName,
    flow: NewFlowOrNone = "",
    dry_run: DryRun = False,
    drop_state: DropState = None,
    only: Only = None,
    drain: Drain = False,
    begin: Begin = "now",
    cut: NewCut = "",
    canary: CanaryOf = "",
    looks: CanaryFor = "",
    dead_letter_old: DeadLetterOld = False,
    promote: Promote = False,
    key: SigningKey = None,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on with its flow as it is here, from its state; its name and its tables stay.

    Code of an equal flow takes the place of its code. Where steps differ, that is the app's next revision,
    which comes into force at one place of its log. Each device that gets other steps goes over to them at a
    commit, once the data centre has; those that are out of contact do so when they come. Steps that are new
    begin there too; with --from they first read the log from another place on.

    With --canary the devices that SELECTOR means run it alone for a while, where the data centre's part stays
    as it is. If they do well, the others follow by themselves. Else they go back, and gear info says why.
    gear update APP --promote and gear rollback APP end that by hand.

    \b
    Examples:
      gear update heat ./my-project --dry-run
      gear update heat . --only attach --from earliest
      gear update heat . --cut calm
      gear update heat . --drop-state highest
      gear update heat . --canary kind=first --for 30m
      gear update heat --promote
    """
    from geartrain_client.cli.updating import ChangeWishes, promote_app, update_app

    edits = tuple(_DONE[one] for one in only or ())
    wishes = ChangeWishes(
        *(tuple(drop_state or ()), dry_run, seconds_of(wait, timeout), json, edits),
        drain=drain,
        cut=cut,
        begin=begin,
        canary=canary,
        looks=looks,
        dead_letter_old=dead_letter_old,
    )
    if promote:
        promote_app(platform_at(url, state), app, flow, wishes)
    else:
        update_app(platform_at(url, state), app, flow, key, wishes)


@changes_app.command("attach", short_help="Have an app go on with new steps.")
def attach(
    app: AppName,
    flow: NewFlow,
    steps: Annotated[list[str], typer.Argument(metavar="STEP", help="The new steps, by their ids.")],
    begin: Begin = "now",
    cut: NewCut = "",
    dry_run: DryRun = False,
    key: SigningKey = None,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on with new steps of its flow, and with nothing else that is new; name all of them.

    It is gear update, refused where any other step would change. The steps begin empty, with the first record
    after the update. With --from they read the log first: all of it, or from where its clock came to a time.
    What they make of it comes into their tables once, and the app's other results wait meanwhile.

    \b
    Examples:
      gear attach heat ./my-project means means_table --dry-run
      gear attach heat ./my-project means means_table --from earliest
      gear attach heat ./my-project means means_table --from 2026-01-05T09:00:00Z
      gear attach heat my_flow:flow means means_table
    """
    from geartrain_client.cli.updating import ChangeWishes, update_app

    edits = (_DONE[Edit.ATTACH],)
    wishes = ChangeWishes(
        *((), dry_run, seconds_of(wait, timeout), json, edits, tuple(steps)), cut=cut, begin=begin
    )
    update_app(platform_at(url, state), app, flow, key, wishes)


@changes_app.command("replace", short_help="Have an app go on with other code or options of steps.")
def replace(
    app: AppName,
    flow: NewFlow,
    steps: Annotated[list[str], typer.Argument(metavar="STEP", help="The steps that differ, by their ids.")],
    dry_run: DryRun = False,
    drop_state: DropState = None,
    key: SigningKey = None,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on with other code or other options of steps, and with all others as they are.

    It is gear update, refused where a step that is not named would get other inputs, types or options. Files
    that differ are shown; which steps they are for is not known.

    \b
    Examples:
      gear replace heat ./my-project high --dry-run
      gear replace heat my_flow:flow high highest --drop-state highest
    """
    from geartrain_client.cli.updating import ChangeWishes, update_app

    wishes = ChangeWishes(
        tuple(drop_state or ()),
        dry_run,
        seconds_of(wait, timeout),
        json,
        (_DONE[Edit.REPLACE],),
        tuple(steps),
    )
    update_app(platform_at(url, state), app, flow, key, wishes)


@changes_app.command("remove", short_help="Have an app go on without some of its steps.")
def remove(
    app: AppName,
    steps: Annotated[list[str], typer.Argument(metavar="STEP", help="The steps, by their ids.")],
    drain: Drain = False,
    dry_run: DryRun = False,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on without some of its steps and without what hangs below them; its code stays.

    A step that also reads what stays is not taken along: name it, or nothing is changed. What the steps have
    kept goes. With --drain they put out first what they hold, such as open windows and records that wait for
    their order; where they hold something on devices, it is refused. Their tables stay as they are. The next
    gear update has them again, if its flow has.

    \b
    Examples:
      gear remove heat means --dry-run
      gear remove heat means highest --drain
    """
    from geartrain_client.cli.updating import ChangeWishes, remove_steps

    wishes = ChangeWishes((), dry_run, seconds_of(wait, timeout), json, (_DONE[Edit.REMOVE],), drain=drain)
    remove_steps(platform_at(url, state), app, tuple(steps), wishes)


@changes_app.command("rollback", short_help="Have an app go on with what it ran before its update.")
def rollback(
    app: AppName,
    dry_run: DryRun = False,
    drop_state: DropState = None,
    dead_letter_old: DeadLetterOld = False,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on with the code, or the revision, that it ran before its last update, from its state.

    A revision that is not in the log yet is given up. State of steps that an update has removed is gone: they
    begin anew.

    \b
    Examples:
      gear rollback heat --dry-run
      gear rollback heat
    """
    from geartrain_client.cli.updating import ChangeWishes, rollback_app

    wishes = ChangeWishes(
        *(tuple(drop_state or ()), dry_run, seconds_of(wait, timeout), json), dead_letter_old=dead_letter_old
    )
    rollback_app(platform_at(url, state), app, wishes)


@changes_app.command("revisions", short_help="List what an app runs, and ran before.")
def revisions(app: AppName, url: Url = None, state: State = None, json: Json = False) -> None:
    """List the revisions of an app: the one in force, those before it, and the one that is to come.

    \b
    Example:
      gear revisions heat
    """
    from geartrain_client.cli.updating import show_revisions

    show_revisions(platform_at(url, state), app, as_json=json)


Of = Annotated[
    str, typer.Option("--devices", metavar="SELECTOR", help="Which of its devices, as for gear submit.")
]


Capacity = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0.001,
        max=1,
        help="With auto or adaptive: of a core of each device, 0.5 if absent.",
    ),
]


class Tier(StrEnum):
    """Where a step goes."""

    EDGE = "edge"
    CLOUD = "cloud"


@changes_app.command("cut", short_help="Have devices of an app go on with another cut.")
def cut(
    app: AppName,
    spec: Annotated[str, typer.Argument(metavar="auto|adaptive|edge|cloud|STEP,...", help="Where to cut.")],
    devices: Of = "all",
    capacity: Capacity = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have devices of an app go on with another cut, while it runs; no result is another by that.

    The data centre's part goes over to its next revision first, where it does not take these records yet.
    Devices that are out of contact get the cut when they come, and those that are added later have it where
    SELECTOR means them. What a step keeps goes with it, and --dry-run says how much that is. auto gives each
    device the cut that fits it, by what was measured there in the last half minute. It says why, and is no
    rule for devices that are added later. adaptive does so again and again: a device moves when it takes more
    than it may, or has room to spare.

    \b
    Examples:
      gear cut heat edge --devices kind=strong --dry-run
      gear cut heat high,low --devices truck-7
      gear cut heat cloud
      gear cut heat auto --capacity 0.2 --dry-run
      gear cut heat adaptive --devices kind=old
    """
    from geartrain_client.cli.cutting import CutWishes, cut_app

    wishes = CutWishes(devices, dry_run, seconds_of(wait, timeout), json, capacity)
    cut_app(platform_at(url, state), app, spec, wishes)


@changes_app.command("move", short_help="Move a step of an app to devices, or to the data centre.")
def move(
    app: AppName,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step, as gear plan shows it.")],
    to: Annotated[Tier, typer.Option("--to", help="To the devices, or to the data centre.")],
    devices: Of = "all",
    dry_run: DryRun = False,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Move a step of an app to devices or to the data centre, while it runs; no result is another by that.

    What stands above it goes to the devices as well, and what stands below it to the data centre. Devices
    with other cuts keep the rest of them. What a step keeps goes with it: state, timers, open windows. What
    merges the records of several devices stays in the data centre, and the move is refused. --dry-run says
    how many cells and bytes of state would move, and for how long steps would pause.

    \b
    Examples:
      gear move heat high --to edge --devices kind=truck --dry-run
      gear move heat high --to cloud --devices truck-7
    """
    from geartrain_client.cli.cutting import CutWishes, move_step

    wishes = CutWishes(devices, dry_run, seconds_of(wait, timeout), json)
    move_step(platform_at(url, state), app, step, to.value, wishes)


@changes_app.command("backfill", short_help="Bring history of a device into an app.")
def backfill(
    app: AppName,
    source: Annotated[
        str, typer.Option("--source", metavar="STEP", help="The source whose records they are.")
    ],
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="The device that they are of.")],
    files: Annotated[
        list[Path],
        typer.Option(
            "--file", metavar="FILE", help="CSV, JSON lines, lines of text or Parquet; may be repeated."
        ),
    ],
    time: Annotated[
        str, typer.Option("--time", metavar="COLUMN", help="Where a row has its event time.")
    ] = "time",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="How the files are written; may be repeated."),
    ] = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Bring history of a device into an app, in which it takes the way of all records.

    A device that has never had the app begins with its history, in order before its live records. Any other
    history goes into a run of its own, which is an app of its own: live tables stay as they are. It says
    which of both it is. The same files add nothing, and after Ctrl-C the same command goes on.

    --set takes the options of the sources that read such files, by their names. Such are delimiter, decimal,
    encoding and time_format of CSV, fields of JSON lines, and pattern of lines of text.

    \b
    Examples:
      gear backfill heat --source readings --device room-7 --file 2024.csv --file 2025.csv.gz
      gear backfill heat --source readings --device room-7 --file old.csv --time at --set "delimiter=;"
    """
    from geartrain_client.cli.backfilling import BackfillWishes, backfill_app, parse_written

    written = parse_written(settings or [])
    wishes = BackfillWishes(source, device, files, time, written, dry_run, seconds_of(wait, timeout), json)
    backfill_app(platform_at(url, state), app, wishes)


@changes_app.command("scale", short_help="Deal the keys of an app over more slots, or fewer.")
def scale(
    app: AppName,
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=64, help="For how many tasks of Spark at once.")
    ],
    dry_run: DryRun = False,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Deal the keys of an app over more slots, or fewer, while it runs. Results stay the same.

    The data centre runs as many slots at once as it has cores. So more of them help where keyed steps have
    much to do and cores are free. What the steps keep moves with the keys, in two micro-batches.
    The app keeps its slots over restarts, updates and replays.

    \b
    Examples:
      gear scale heat --slots 8 --dry-run
      gear scale heat --slots 8
    """
    from geartrain_client.cli.scaling import scale_app

    scale_app(
        platform_at(url, state), app, slots, dry_run=dry_run, seconds=seconds_of(wait, timeout), as_json=json
    )
