"""The settings of an agent that its classes read: sizes and times with their defaults, as frozen data.

`geartrain_edge.agent.config` makes them from a file; tests and the simulator make them directly. Every loop,
queue and retry of the agent is bounded by one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from geartrain.state.moving import CELLS_MAX
from geartrain.wire.limits import LIMITS, Limits

DRAIN_FILE = "drain"
"""Its presence in an agent's state folder asks for: read no more, send what is spooled, end."""
COMMITTED_FILE = "committed"
"""In an agent's state folder: the hash of the code with which records were committed, or were about to be."""
PARENT_VARIABLE = "GEARTRAIN_PARENT_PID"
"""Where the parent of an agent names itself in its environment; without it an agent stands alone."""
CLAIMS_FILE = "urgent.lock"
"""In a device's state folder: by locks on it, urgent flows have those of other processes wait."""
SHARED_FOLDER = "shared"
"""In a device's state folder: locks and sockets by which its apps share sensors."""
SECRETS_FOLDER = "secrets"
"""In a device's state folder: a folder for each app, with a file for each of its secrets."""
FORK_SERVER = "--fork-server"
"""The only word of the command line of the process from which a parent's agents are forked."""
FORK_REQUEST_BYTES_MAX = 16_384
"""A request to it."""


class Policy(Enum):
    """What happens at the spool's cap: BLOCK: the sources wait; DROP_NEWEST: what has no batch yet is
    dropped; DROP_OLDEST: the oldest unacked batches are; DOWNSAMPLE: near the cap only every n-th row is
    kept.
    """

    BLOCK = "block"
    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"
    DOWNSAMPLE = "downsample"


class UplinkSettings(msgspec.Struct, frozen=True):
    """How batches are sent.

    window, window_bytes: sent batches that may wait for an ack; resend_ms: after so long without progress
    all of them are sent again, doubling up to resend_ms_max; backoff_ms, backoff_ms_max: the range of the
    pause before a new connection, drawn at random up to it; silence_ms: a connection on which ingest says
    nothing for so long, while batches wait, is made anew; digest_retries_max: times that ingest may refuse
    one batch's digest before the spool is looked into; flip_window_s: a second new epoch within so long stops
    the agent; refused_ms_max: as backoff_ms_max, where the last connection was refused at once, which costs
    nobody much; denied_ms_max: as backoff_ms_max, where the broker refuses this device; probe_ms_min: an ack
    is not overdue before so long, however fast acks have been; trim_ms: what is acked is trimmed from the
    spool no sooner than so long after the last time; trim_rest_ms: and so much later while nobody waits for
    the room; bytes_per_s_max: of batches on a costly or slow link, 0 for as many as it carries.
    """

    window: int = 64
    window_bytes: int = 4 << 20
    resend_ms: int = 2_000
    resend_ms_max: int = 30_000
    backoff_ms: int = 250
    backoff_ms_max: int = 30_000
    silence_ms: int = 120_000
    digest_retries_max: int = 3
    flip_window_s: int = 3_600
    refused_ms_max: int = 1_000
    denied_ms_max: int = 60_000
    probe_ms_min: int = 50
    trim_ms: int = 50
    trim_rest_ms: int = 0
    bytes_per_s_max: int = 0


FREE_FLOOR_BYTES = 50_000_000
"""Of a device's disk: spools and code that is fetched leave so much free, unless its file says otherwise."""


class AgentSettings(msgspec.Struct, frozen=True):
    """How an agent works.

    device: its name; spool_bytes_max, policy: the spool's cap and what happens there, None for what the
    sources allow: `block` where all can wait, else `drop_oldest`; downsample_keep,
    downsample_above: every n-th row is kept while the spool holds more than that part of its cap;
    records_max, interval_ms: a commit is made after so many records (fewer where they are large), or so long
    after its first, or at once when the sources are idle; linger_ms: sources that give a few rows at a time
    are given so long since the last commit; durability_ms: between two commits of what was read lies at least
    so long, unless there is a commit's fill before; free_floor_bytes: of its disk that the spool leaves free;
    read_max: rows of one read of a split, between two of which all
    else has its turn; idle_ms_max: the longest pause while the sources have nothing; urgent: the other flows
    of the same agent give way to this one; mended: what the hash of the flow's files begins with, where these
    may differ from those that the spool was begun with; shared: the folder by which the apps of the device
    share sensors, None where this one is alone; base_cut: the app's cut where the device has its own, in
    words; revision: the number of the app's revision, 0 where nobody has said; drops: by step the number of
    the newest revision by which it has lost what it kept;
    secrets: the folder of the app's secrets, None for none; claim_ms: how long the sources wait for the
    state of steps that come from the cloud; claim_cells_max: cells that come at once.
    """

    device: str
    spool_bytes_max: int = 256 << 20
    records_max: int = 10_000
    interval_ms: int = 200
    linger_ms: int = 5
    durability_ms: int = 0
    read_max: int = 2_000
    idle_ms_max: int = 100
    stop_ms: int = 5_000
    uplink: UplinkSettings = msgspec.field(default_factory=UplinkSettings)
    limits: Limits = LIMITS
    policy: Policy | None = Policy.BLOCK
    downsample_keep: int = 10
    downsample_above: float = 0.8
    urgent: bool = False
    mended: str = ""
    free_floor_bytes: int = FREE_FLOOR_BYTES
    shared: Path | None = None
    base_cut: tuple[str, ...] = ()
    revision: int = 0
    drops: Mapping[str, int] = {}
    secrets: Path | None = None
    claim_ms: int = 20_000
    claim_cells_max: int = CELLS_MAX
