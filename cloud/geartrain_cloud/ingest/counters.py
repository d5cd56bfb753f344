"""Every counter of ingest, by name: what it received, kept, refused and discarded.

The totals are in the ledger. A commit writes those that changed, together with what they count. If a refusal
leaves nothing to commit, its counter is written with the next commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Counter(StrEnum):
    """Names of the totals. A batch is counted where it is decided upon, its records by its header."""

    BATCHES_RECEIVED = "batches_received"
    """Publishes that arrived on an `up` topic, good or not."""
    BATCHES_APPENDED = "batches_appended"
    """Batches taken in seq order, each once, with rows or without, quarantined in their place or not."""
    RECORDS_LOGGED = "records_logged"
    """Rows in the log."""
    RECORDS_OVERTAKEN = "records_overtaken"
    """Rows in the log that were below its clock when they came: of a device assigned late or readmitted."""
    RECORDS_RESUBMITTED = "records_resubmitted"
    """Rows in the log that a person took out of the quarantine or the dead letters."""
    DEVICES_EXCLUDED = "devices_excluded"
    """Times that a flow went on without a device of which nothing was heard."""
    DEVICES_READMITTED = "devices_readmitted"
    """Times that such a device was heard again."""
    EPOCHS_OPENED = "epochs_opened"
    """Epochs that began, the first of each device among them."""
    DUPLICATES = "duplicates"
    """Batches that had been appended before, with the same digest: acked again."""
    STALE_BATCHES = "stale_batches"
    """Batches appended so long ago, or in an epoch before, that their digest is forgotten: not compared."""
    DIGEST_CONFLICTS = "digest_conflicts"
    """Batches under the seq of an appended one with another digest: quarantined, the first stands."""
    DIGEST_MISMATCHES = "digest_mismatches"
    """Batches whose digest is not that of their bytes: refused, asked for again."""
    CLOSED_EPOCH_BATCHES = "closed_epoch_batches"
    """Batches of an epoch that a later one has replaced: refused, quarantined if they were never appended."""
    UNOPENED_BATCHES = "unopened_batches"
    """Batches of an epoch that no hello has opened, while another is open: refused, with an alarm."""
    REORDERED_BATCHES = "reordered_batches"
    """Batches that came before one they follow on, and waited for it."""
    WAITING_DROPPED = "waiting_dropped"
    """Batches beyond a gap that found no room to wait: dropped, the device sends them again."""
    LOSSES = "losses"
    """Gaps that their device can no longer fill: passed, with an entry in the log and an alarm."""
    BATCHES_LOST = "batches_lost"
    """Seqs in these gaps; how many records they held is unknown."""
    OVERSIZED_PAYLOADS = "oversized_payloads"
    """Publishes above the size cap: dropped before anything was decoded."""
    FOREIGN_TOPICS = "foreign_topics"
    """Publishes on a topic that no device sends to: dropped."""
    OTHER_WIRE_VERSION = "other_wire_version"
    """Batches of an agent that speaks another version of the wire: left with the device, which sends them
    again and keeps them until its agent is upgraded. An alarm names the device."""
    UNASSIGNED_BATCHES = "unassigned_batches"
    """Batches of a device that is not assigned to the flow: quarantined undecoded. Where ingest follows a
    roster they are left with the device, which may be assigned in a moment."""
    DEVICES_ASSIGNED = "devices_assigned"
    """Times that a device came to a flow while ingest ran."""
    DEVICES_RETIRED = "devices_retired"
    """Times that a device was taken from a flow, which goes on without it."""
    FLOWS_ENDED = "flows_ended"
    """Flows that have ended, by a last entry in each partition."""
    REVISIONS = "revisions"
    """Times that a partition of a flow went over to another revision, by an entry."""
    CROSSINGS = "crossings"
    """Times that a device went over to another cut or revision, by an entry."""
    CROSSINGS_LOST = "crossings_lost"
    """Crossings of devices that never came: their batches were damaged on the device, or the ledger was
    exchanged."""
    SET_BACK_HELLOS = "set_back_hellos"
    """Times that an epoch was not opened, because it begins before a crossing that is in the log."""
    SET_BACK_BATCHES = "set_back_batches"
    """Batches that were made before a crossing that is in the log, or behind one that it cannot get any more:
    refused, their epoch is over.
    """
    RECORDS_DISOWNED = "records_disowned"
    """Of the dropped records, those of retired devices and ended flows: declared dropped, and acked."""
    ROSTER_REFUSED = "roster_refused"
    """Times that the roster, or a row of it, could not be used: ingest goes on as it was told before."""
    MALFORMED_BATCHES = "malformed_batches"
    """Publishes whose envelope or header cannot be decoded: quarantined."""
    IDENTITY_MISMATCHES = "identity_mismatches"
    """Batches whose header names another device or flow than their topic: quarantined."""
    HELD_HELLOS = "held_hellos"
    """Times that a fresh spool was not opened, because it runs a revision that the log has not brought."""
    HELD_BATCHES = "held_batches"
    """Times that a batch was left with its device, because the flow has another channel or schema."""
    UNKNOWN_CHANNEL_BATCHES = "unknown_channel_batches"
    """Answers to a NACK that announce a channel which the flow lacks: quarantined."""
    UNKNOWN_SCHEMA_BATCHES = "unknown_schema_batches"
    """Batches in sequence whose channel has no schema, though it was asked for: quarantined, acked."""
    UNDECODABLE_BATCHES = "undecodable_batches"
    """Batches in sequence with a good digest whose body cannot be decoded: quarantined, acked."""
    SCHEMA_CONFLICTS = "schema_conflicts"
    """Answers to a NACK whose schema is not the channel's: not taken, quarantined."""
    SCHEMAS_ASKED = "schemas_asked"
    """NACKs that asked a device for the schema of its next batch."""
    SCHEMAS_ANSWERED = "schemas_answered"
    """SCHEMA batches without a seq, which answer these."""
    HELLOS = "hellos"
    """Fresh epochs that asked where their device stands, each time they did."""
    WELCOMES_SENT = "welcomes_sent"
    """Answers to these, handed to the broker."""
    OFFERS_SENT = "offers_sent"
    """Answers to hellos whose ordinal another epoch has: they opened nothing."""
    GAPS = "gaps"
    """Gap batches that were taken: the device dropped what they stand for."""
    BATCHES_DROPPED = "batches_dropped"
    """Batches that gaps stood for and that had not been appended."""
    RECORDS_DROPPED = "records_dropped"
    """Records that devices dropped, with a seq or before they had one, and that are not in the log."""
    POSITIONS_UNKEPT = "positions_unkept"
    """Positions in a header beyond as many splits as a header may name: not kept, so that no device can fill
    the memory with names."""
    WATERMARKS_BACK = "watermarks_back"
    """Watermarks in a header that lay below the device's former ones: ignored."""
    WATERMARKS_UNKNOWN = "watermarks_unknown"
    """Watermarks in a header of sources that its device does not have, as far as ingest was told: ignored."""
    QUARANTINED_BATCHES = "quarantined_batches"
    """Batches kept raw in the quarantine."""
    QUARANTINED_RECORDS = "quarantined_records"
    """Records, by their headers, of batches in sequence that were quarantined, or found it full."""
    QUARANTINE_BYTES = "quarantine_bytes"
    """Bytes of the payloads in the quarantine."""
    QUARANTINE_DROPPED = "quarantine_dropped"
    """Batches not kept because the quarantine is full."""
    MISPLACED_RECORDS = "misplaced_records"
    """Rows whose value of the field that their source is partitioned by came from another device first."""
    PARTITION_VALUES_FORGOTTEN = "partition_values_forgotten"
    """Values of such a field that had to be forgotten for newer ones: of these, none would be found."""
    SEGMENTS_REMOVED = "segments_removed"
    """Segments that retention has let go."""
    RECORDS_REMOVED = "records_removed"
    """Rows in these."""
    RECORDS_ERASED = "records_erased"
    """Rows that were erased because of the device that had sent them."""
    SEGMENTS_MERGED = "segments_merged"
    """Segments that were put into larger ones."""
    SEGMENTS_DAMAGED = "segments_damaged"
    """Segments that were found damaged when they were to be merged: left alone, with an alarm."""
    ORPHAN_SEGMENTS = "orphan_segments"
    """Segment files that no entry names, removed at start: a crash came between file and ledger."""
    ACKS_SENT = "acks_sent"
    """Acks handed to the broker."""
    NACKS_SENT = "nacks_sent"
    """NACKs handed to the broker."""
    NACKS_SUPPRESSED = "nacks_suppressed"
    """NACKs not sent because the same one had just been."""
    ANSWERS_UNSENT = "answers_unsent"
    """Answers that the wire cannot carry, because the device had said that its seqs are at their end: nothing
    is sent, and only it hears nothing."""
    CONNECTIONS_LOST = "connections_lost"
    """Times that the broker could not be reached or the connection broke."""
    SUBSCRIPTIONS_RENEWED = "subscriptions_renewed"
    """Times that ingest subscribed again because nothing had come for long."""


TOTAL_MAX = 2**63 - 1
"""Where a total stands still: what a device says that it dropped is its word, and the ledger has 64 bits."""

ROWS_PREFIX = "rows:"
"""Totals of rows by channel are kept under this prefix, as `rows:<flow>/<channel>`."""

BYTES_PREFIX = "bytes:"
"""Totals of payload bytes by flow are kept under this prefix, as `bytes:<flow>`: of each batch, once."""

DROPPED_PREFIX = "dropped:"
"""Totals of dropped records by channel are kept under this prefix, as `dropped:<flow>/<channel>`."""


class Counters:
    """The totals, and which of them changed since they were last committed."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._totals = dict(totals)
        self._changed: set[str] = set()

    def add(self, name: str, amount: int = 1) -> None:
        """Raise the total of `name`, a `Counter` or a name with `ROWS_PREFIX`."""
        if amount:
            key = str(name)
            self._totals[key] = min(self._totals.get(key, 0) + amount, TOTAL_MAX)
            self._changed.add(key)

    def __getitem__(self, name: str) -> int:
        return self._totals.get(str(name), 0)

    def take_changed(self) -> dict[str, int]:
        """The totals that changed since the last call, for a commit that is then made."""
        changed = {name: self._totals[name] for name in sorted(self._changed)}
        self._changed.clear()
        return changed

    @property
    def has_changed(self) -> bool:
        """Whether a commit would write any total."""
        return bool(self._changed)

    def totals(self) -> dict[str, int]:
        """All totals of `Counter`, those at zero too."""
        return {counter.value: self[counter] for counter in Counter}
