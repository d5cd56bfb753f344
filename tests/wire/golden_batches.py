"""What the golden files of wire version 2 hold, as data; `python -m tests.wire.golden_batches` writes them.

They are written once and kept: a change that cannot read them any more is a new version of the wire.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.ports.spool import SplitProgress
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain.wire.body import encode_rows
from geartrain.wire.codec import encode_control, encode_envelope, encode_gap, encode_header, encode_schemas
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import (
    DEFLATED,
    Ack,
    BatchKind,
    Control,
    Envelope,
    Header,
    Nack,
    NackReason,
    Offer,
    Welcome,
)

FOLDER = Path(__file__).parent / "golden"
EPOCH = bytes(range(1, 9))
DAY_US = 86_400_000_000

QUOTE = Schema(
    "Quote",
    (
        Field("symbol", FieldType.STR),
        Field("price", FieldType.FLOAT64),
        Field("volume", FieldType.INT64, True),
        Field("open", FieldType.BOOL),
        Field("raw", FieldType.BYTES, True),
        Field("seen", FieldType.DATETIME),
    ),
)
COUNT = Schema("int", (Field("value", FieldType.INT64),), scalar=True)
SCHEMAS = {"quotes": QUOTE, "counts": COUNT}

FEW = ColumnBatch(
    fields=[
        ["AAPL", "Ω", "AAPL"],
        [float("inf"), -0.0, 0.1 + 0.2],
        [2**63 - 1, None, -(2**63)],
        [True, False, True],
        [b"\0\xff", None, b""],
        [0, -1, DAY_US],
    ],
    times=[5, -7, 2**62],
    names=["device-1/quotes"] * 3,
    numbers=[3, 1, 2],
    paths=[b"", b"\1", b"\1\2"],
)
MANY = ColumnBatch(
    fields=[
        [f"S{n % 3}" for n in range(40)],
        [(1_000 + n * n) / 100 for n in range(40)],
        [n * 1_000_000 for n in range(40)],
        [True] * 40,
        [None] * 40,
        [n * DAY_US for n in range(40)],
    ],
    times=[1_223_596_800_000_000 + n * DAY_US for n in range(40)],
    names=["device-1/quotes"] * 40,
    numbers=list(range(1_000, 1_040)),
)

SCHEMA_HEADER = Header(kind=BatchKind.SCHEMA, flow="stocks", device="device-1", epoch=EPOCH, seq=1)
FEW_HEADER = Header(
    kind=BatchKind.DATA,
    flow="stocks",
    device="device-1",
    epoch=EPOCH,
    seq=2,
    channel="quotes",
    schema_id=QUOTE.schema_id,
    count=3,
    watermarks={"quotes": START_OF_TIME, "_late": END_OF_TIME},
    positions={("quotes", "device-1/quotes"): SplitProgress(3, -7), ("x", "Ω"): SplitProgress(0, 0, True)},
)
MANY_HEADER = Header(
    kind=BatchKind.DATA,
    flow="stocks",
    device="device-1",
    epoch=EPOCH,
    seq=2**63 - 1,
    channel="quotes",
    schema_id=QUOTE.schema_id,
    count=40,
    first_number=1_000,
    flags=DEFLATED,
)
DROPPED_HEADER = Header(
    kind=BatchKind.DATA,
    flow="stocks",
    device="device-1",
    epoch=EPOCH,
    seq=3,
    watermarks={"quotes": 5},
    dropped={"quotes": 9, "_late": 2**40},
)
GAP_HEADER = Header(
    kind=BatchKind.GAP,
    flow="stocks",
    device="device-1",
    epoch=EPOCH,
    seq=9,
    watermarks={"quotes": DAY_US},
    positions={("quotes", "device-1/quotes"): SplitProgress(70, DAY_US)},
    first_seq=4,
    digest_after=bytes(range(16, 32)),
)
GAP = [(4, "_late", 1), (4, "quotes", 40), (9, "quotes", 2**33)]
HELLO_HEADER = Header(kind=BatchKind.HELLO, flow="stocks", device="device-1", epoch=EPOCH, seq=0)
ORDINAL_HEADER = Header(
    kind=BatchKind.HELLO, flow="stocks", device="device-1", epoch=EPOCH, seq=0, ordinal=2**40
)
DOWN_HEADER = Header(
    BatchKind.DATA,
    "stocks",
    "device-1",
    EPOCH,
    12,
    "command_down",
    COUNT.schema_id,
    3,
    4,
    {"command_down": DAY_US, "model_down": START_OF_TIME},
)
"""As a batch of the outbox has it: no positions, and the watermarks of what goes down."""
SOURCES_HEADER = Header(
    kind=BatchKind.DATA,
    flow="stocks",
    device="device-1",
    epoch=EPOCH,
    seq=4,
    watermarks={"quotes": 5, "_late": 5},
    source_watermarks={"quotes": END_OF_TIME, "desk": 5},
)
DOWN_HELLO_HEADER = Header(BatchKind.HELLO, "stocks", "device-1", EPOCH, 0, ordinal=3, first_seq=2**40)
HEADERS = {
    "schema_header": SCHEMA_HEADER,
    "few_header": FEW_HEADER,
    "many_header": MANY_HEADER,
    "dropped_header": DROPPED_HEADER,
    "gap_header": GAP_HEADER,
    "hello_header": HELLO_HEADER,
    "ordinal_header": ORDINAL_HEADER,
    "down_header": DOWN_HEADER,
    "down_hello_header": DOWN_HELLO_HEADER,
    "sources_header": SOURCES_HEADER,
}
CONTROLS: dict[str, Control] = {
    "ack": Ack("stocks", EPOCH, 2, bytes(range(16)), 7),
    "nack": Nack("stocks", EPOCH, 1, NackReason.CLOSED, 2**63 - 1),
    "need_schema": Nack("stocks", EPOCH, 6, NackReason.NEED_SCHEMA, 3),
    "welcome": Welcome(
        "stocks",
        EPOCH,
        {("quotes", "device-1/quotes"): SplitProgress(70, -1, True), ("x", "Ω"): SplitProgress(0, 0)},
        {"quotes": START_OF_TIME, "_late": DAY_US},
        2,
    ),
    "welcome_stranger": Welcome("stocks", EPOCH, {}, {}, 1),
    "offer": Offer("stocks", EPOCH, 2**40, 9),
    "welcome_sources": Welcome(
        "stocks", EPOCH, {}, {"quotes": DAY_US}, 2, {"quotes": DAY_US, "desk": START_OF_TIME}
    ),
    "hold": Nack("stocks", EPOCH, 6, NackReason.HOLD, 3),
}


def written() -> dict[str, bytes]:
    """The bytes that this version writes, by the name of the file."""
    files = {name: encode_header(header) for name, header in HEADERS.items()}
    files |= {name: encode_control(control) for name, control in CONTROLS.items()}
    files["schemas"] = encode_schemas(SCHEMAS)
    files["gap_body"] = encode_gap(GAP)
    files["few_body"] = encode_rows(QUOTE, FEW).body
    files["many_body"] = encode_rows(QUOTE, MANY).body
    digest = next_digest(FIRST_DIGEST, files["few_header"], files["few_body"])
    files["envelope"] = encode_envelope(Envelope(files["few_header"], files["few_body"], digest, 1))
    return files


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stem, data in written().items():
        if not (FOLDER / f"{stem}.bin").exists():
            (FOLDER / f"{stem}.bin").write_bytes(data)
