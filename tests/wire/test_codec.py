"""Header, envelope, ack, NACK and schemas survive the wire; what breaks a rule is refused on both ends."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from geartrain.errors import WireError
from geartrain.ports.spool import SplitProgress
from geartrain.schema import Field, FieldType, Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.codec import (
    decode_control,
    decode_envelope,
    decode_gap,
    decode_header,
    decode_schemas,
    encode_control,
    encode_envelope,
    encode_gap,
    encode_header,
    encode_schemas,
)
from geartrain.wire.envelope import (
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
from geartrain.wire.limits import LIMITS, Limits
from tests.wire.batches import INT64_MAX, INT64_MIN

INT64S = st.integers(INT64_MIN, INT64_MAX)
SEQS = st.integers(1, INT64_MAX)
TERMS = st.integers(0, INT64_MAX)
EPOCHS = st.binary(min_size=8, max_size=8)
DIGESTS = st.binary(min_size=16, max_size=16)
NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=64)

POSITIONS = st.dictionaries(
    st.tuples(NAMES, st.text(min_size=1, max_size=20)),
    st.builds(SplitProgress, INT64S, INT64S, st.booleans()),
    max_size=5,
)
WATERMARKS = st.dictionaries(NAMES, INT64S, max_size=5)
HEADERS = st.builds(
    Header,
    kind=st.just(BatchKind.DATA),
    flow=NAMES,
    device=NAMES,
    epoch=EPOCHS,
    seq=SEQS,
    channel=NAMES,
    schema_id=st.one_of(st.just(""), st.text("0123456789abcdef", min_size=16, max_size=16)),
    count=st.integers(0, LIMITS.rows_max),
    first_number=INT64S,
    watermarks=WATERMARKS,
    positions=POSITIONS,
    flags=st.integers(0, 1),
    dropped=st.dictionaries(NAMES, SEQS, max_size=5),
    source_watermarks=WATERMARKS,
)
GAPS = st.builds(
    lambda seqs, **rest: Header(kind=BatchKind.GAP, seq=max(seqs), first_seq=min(seqs), **rest),
    st.tuples(SEQS, SEQS),
    flow=NAMES,
    device=NAMES,
    epoch=EPOCHS,
    digest_after=DIGESTS,
    watermarks=WATERMARKS,
    source_watermarks=WATERMARKS,
    positions=POSITIONS,
)
HEADER = Header(
    kind=BatchKind.DATA, flow="stocks", device="device-1", epoch=bytes(8), seq=1, channel="quotes", count=3
)
SCHEMA = Schema("Quote", (Field("price", FieldType.FLOAT64, True),))


@given(st.one_of(HEADERS, GAPS))
@settings(deadline=None)
def test_header_comes_back(header: Header) -> None:
    assert decode_header(encode_header(header)) == header


@given(HEADERS)
@settings(deadline=None)
def test_equal_headers_are_equal_bytes(header: Header) -> None:
    shuffled = replace(
        header,
        watermarks=dict(reversed(list(header.watermarks.items()))),
        positions=dict(reversed(list(header.positions.items()))),
        source_watermarks=dict(reversed(list(header.source_watermarks.items()))),
    )
    assert encode_header(shuffled) == encode_header(header)


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=200), DIGESTS, SEQS)
def test_envelope_comes_back(header: bytes, body: bytes, digest: bytes, oldest: int) -> None:
    envelope = Envelope(header, body, digest, oldest)
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(st.builds(Ack, NAMES, EPOCHS, SEQS, DIGESTS, TERMS))
def test_ack_comes_back(ack: Ack) -> None:
    assert decode_control(encode_control(ack)) == ack


@given(st.builds(Nack, NAMES, EPOCHS, SEQS, st.sampled_from(NackReason), TERMS))
def test_nack_comes_back(nack: Nack) -> None:
    assert decode_control(encode_control(nack)) == nack


@given(st.builds(Welcome, NAMES, EPOCHS, POSITIONS, WATERMARKS, TERMS, WATERMARKS))
@settings(deadline=None)
def test_welcome_comes_back(welcome: Welcome) -> None:
    assert decode_control(encode_control(welcome)) == welcome


def test_what_has_no_seq_comes_back() -> None:
    for kind in (BatchKind.HELLO, BatchKind.SCHEMA):
        header = Header(kind=kind, flow="stocks", device="device-1", epoch=bytes(8), seq=0)
        assert decode_header(encode_header(header)) == header


GAP = Header(
    kind=BatchKind.GAP,
    flow="stocks",
    device="device-1",
    epoch=bytes(8),
    seq=9,
    first_seq=4,
    digest_after=bytes(16),
)


@given(st.dictionaries(st.tuples(st.integers(4, 9), NAMES), SEQS, max_size=20))
@settings(deadline=None)
def test_gap_comes_back(counts: dict[tuple[int, str], int]) -> None:
    dropped = [(seq, channel, count) for (seq, channel), count in sorted(counts.items())]
    assert decode_gap(GAP, encode_gap(dropped)) == dropped


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ([(4, "a", 0)], "counts 0 rows of batch 4"),
        ([(4, "a", 2**63)], "counts 9223372036854775808 rows"),
        ([(0, "a", 1)], "a seq is at least 1"),
        ([(4, "", 1)], "cannot name a channel"),
        ([(5, "a", 1), (4, "a", 1)], "batch 4 out of order or twice"),
        ([(5, "a", 1), (5, "a", 1)], "batch 5 out of order or twice"),
        ([(seq, "a", 1) for seq in range(1, LIMITS.rows_max + 2)], "10001 counts; 10000 are the most"),
    ],
)
def test_wrong_gap_is_refused_on_both_ends(dropped: list[tuple[int, str, int]], said: str) -> None:
    with pytest.raises(WireError, match=said):
        encode_gap(dropped)
    if all(count < 2**63 for _, _, count in dropped):
        raw = pb.Gap(
            seqs=[seq for seq, _, _ in dropped],
            channels=[channel for _, channel, _ in dropped],
            counts=[count for _, _, count in dropped],
        )
        with pytest.raises(WireError, match=said):
            decode_gap(replace(GAP, first_seq=1, seq=20_000), raw.SerializeToString())


def test_gap_that_counts_batches_of_others_is_refused() -> None:
    for seq in (3, 10):
        with pytest.raises(WireError, match="counts batches that it does not stand for"):
            decode_gap(GAP, encode_gap([(seq, "a", 1)]))
    with pytest.raises(WireError, match="1 seqs and 0 counts"):
        decode_gap(GAP, pb.Gap(seqs=[4], channels=["a"]).SerializeToString())


def test_schemas_come_back() -> None:
    fields = tuple(Field(f"f_{kind.value}", kind, bool(n % 2)) for n, kind in enumerate(FieldType))
    schemas = {
        "quotes": Schema("Quote", fields),
        "_late": SCHEMA,
        "empty": Schema("Empty", ()),
        "counts": Schema("int", (Field("value", FieldType.INT64),), scalar=True),
    }
    assert decode_schemas(encode_schemas(schemas)) == schemas
    assert decode_schemas(encode_schemas({})) == {}


WRONG_HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"flow": ""}, "flow '': use a name"),
    ({"flow": "a/b"}, "flow 'a/b': use a name"),
    ({"device": "+"}, "device '\\+': use a name"),
    ({"epoch": bytes(7)}, "an epoch has 8 bytes, not 7"),
    ({"epoch": bytes(9)}, "an epoch has 8 bytes, not 9"),
    ({"seq": 0}, "a seq is at least 1"),
    ({"seq": -1}, "a seq is at least 1"),
    ({"channel": ""}, "has rows but no channel"),
    ({"channel": "a\nb"}, "cannot name a channel"),
    ({"schema_id": "xyz"}, "a schema id is 16 hexadecimal digits"),
    ({"kind": BatchKind.SCHEMA}, "announces schemas but counts 3 rows"),
    ({"flags": 2}, "unknown flags 0x2"),
    ({"watermarks": {"": 1}}, "cannot name a channel"),
    ({"source_watermarks": {"": 1}}, "cannot name a channel or a step"),
    ({"positions": {("\n", "s"): SplitProgress(0, 0)}}, "cannot name a channel or a step"),
    ({"positions": {("quotes", ""): SplitProgress(0, 0)}}, "has no name"),
    ({"kind": BatchKind.HELLO, "seq": 0}, "a hello has neither a seq nor rows: 0, 3"),
    ({"kind": BatchKind.HELLO, "seq": 1, "count": 0}, "a hello has neither a seq nor rows: 1, 0"),
    ({"kind": BatchKind.HELLO, "seq": 0, "count": 0, "ordinal": -1}, "an epoch is never negative"),
    ({"ordinal": 1}, "is no hello but has the ordinal of an epoch"),
    ({"first_seq": 1}, "is no gap but says"),
    ({"digest_after": bytes(16)}, "is no gap but says"),
    ({"kind": BatchKind.GAP, "digest_after": bytes(16)}, "cannot stand for the batches from 0 on"),
    ({"kind": BatchKind.GAP, "first_seq": 2, "digest_after": bytes(16)}, "the batches from 2 on"),
    ({"kind": BatchKind.GAP, "first_seq": 1, "count": 0}, "a digest has 16 bytes, not 0"),
    ({"kind": BatchKind.GAP, "first_seq": 1, "digest_after": bytes(16)}, "counts 3 rows in its header"),
    (
        {"kind": BatchKind.GAP, "first_seq": 1, "digest_after": bytes(16), "count": 0, "dropped": {"a": 1}},
        "of kind GAP cannot declare dropped rows",
    ),
    (
        {"kind": BatchKind.SCHEMA, "seq": 0, "count": 0, "dropped": {"a": 1}},
        "of kind SCHEMA cannot declare dropped rows",
    ),
    ({"dropped": {"a": 0}}, "declares 0 dropped rows of channel a"),
    ({"dropped": {"a": -1}}, "declares -1 dropped rows"),
    ({"dropped": {"\n": 1}}, "cannot name a channel"),
]


def raw_header(header: Header) -> bytes:
    """The header's bytes as another program might write them, without our checks."""
    raw = pb.Header(
        version=header.version,
        kind=pb.Header.Kind.ValueType(header.kind.value),
        flow=header.flow,
        device=header.device,
        epoch=header.epoch,
        seq=header.seq,
        channel=header.channel,
        schema_id=header.schema_id,
        count=header.count,
        flags=header.flags,
        watermarks=[pb.Watermark(channel=channel, time=time) for channel, time in header.watermarks.items()],
        positions=[pb.Position(step=step, split=split) for step, split in header.positions],
        first_seq=header.first_seq,
        digest_after=header.digest_after,
        dropped=[pb.Dropped(channel=channel, count=count) for channel, count in header.dropped.items()],
        ordinal=header.ordinal,
        source_watermarks=[
            pb.SourceWatermark(source=source, time=time) for source, time in header.source_watermarks.items()
        ],
    )
    return bytes(raw.SerializeToString())


@pytest.mark.parametrize(("wrong", "said"), WRONG_HEADERS)
def test_wrong_header_is_refused_on_both_ends(wrong: dict[str, Any], said: str) -> None:
    header = replace(HEADER, **wrong)
    with pytest.raises(WireError, match=said):
        encode_header(header)
    with pytest.raises(WireError, match=said):
        decode_header(raw_header(header))


@pytest.mark.parametrize(
    "wrong",
    [{"seq": 2**63}, {"first_number": 2**63}, {"watermarks": {"a": 2**63}}, {"count": -1}],
)
def test_header_that_protobuf_cannot_hold_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        encode_header(replace(HEADER, **wrong))


@pytest.mark.parametrize("version", [0, 1, 3, 2**32 - 1])
def test_other_version_is_said(version: int) -> None:
    data = raw_header(replace(HEADER, version=version, flags=8, seq=0))
    with pytest.raises(WireError, match=f"has wire version {version}; this program speaks version 2 only"):
        decode_header(data)
    with pytest.raises(WireError, match="wire version"):
        encode_header(replace(HEADER, version=version))


def test_name_twice_in_a_header_is_refused() -> None:
    data = encode_header(replace(HEADER, watermarks={"a": 1}))
    twice = pb.Header(watermarks=[pb.Watermark(channel="a", time=2)]).SerializeToString()
    with pytest.raises(WireError, match="names a channel or a split twice"):
        decode_header(data + twice)
    sources = pb.Header(source_watermarks=[pb.SourceWatermark(source="a", time=2)] * 2).SerializeToString()
    with pytest.raises(WireError, match="names a source twice"):
        decode_header(data + sources)
    drops = pb.Header(dropped=[pb.Dropped(channel="a", count=2)] * 2).SerializeToString()
    with pytest.raises(WireError, match="names a channel or a split twice"):
        decode_header(data + drops)


def test_caps_of_the_header() -> None:
    limits = Limits(rows_max=2, names_max=2, header_bytes_max=200)
    with pytest.raises(WireError, match="a batch has 3 rows; 2 are the most"):
        decode_header(encode_header(HEADER), limits)
    few = replace(HEADER, count=2, watermarks={"a": 1, "b": 1})
    assert decode_header(encode_header(few), limits) == few
    with pytest.raises(WireError, match="more than 2 watermarks or positions"):
        decode_header(encode_header(replace(few, watermarks={"a": 1, "b": 1, "c": 1})), limits)
    with pytest.raises(WireError, match=r"a header has 2\d\d bytes; 200 are the most"):
        decode_header(encode_header(replace(few, positions={("q", "s" * 150): SplitProgress(0, 0)})), limits)


def test_header_too_large_for_its_part_of_a_publish_is_refused() -> None:
    positions = {("quotes", f"{n:0200}"): SplitProgress(0, 0) for n in range(700)}
    with pytest.raises(WireError, match=r"a header has .* bytes; 131072 are the most"):
        encode_header(replace(HEADER, positions=positions))


def test_wrong_kind_is_refused() -> None:
    for kind in (0, 6, 99):
        raw = pb.Header.FromString(encode_header(HEADER))
        raw.kind = kind  # type: ignore[assignment]
        with pytest.raises(WireError, match=f"unknown kind {kind}"):
            decode_header(raw.SerializeToString())


@pytest.mark.parametrize(
    ("envelope", "said"),
    [
        (Envelope(b"", b"", bytes(16), 1), "no header"),
        (Envelope(b"h", b"", bytes(15), 1), "a digest has 16 bytes, not 15"),
        (Envelope(b"h", b"", bytes(17), 1), "a digest has 16 bytes, not 17"),
        (Envelope(b"h", b"", bytes(16), 0), "a seq is at least 1"),
        (Envelope(b"h", b"", bytes(16), 2**63), "a seq is at least 1 and fits 64 bits"),
        (Envelope(b"h", bytes(LIMITS.payload_bytes_max), bytes(16), 1), "are the most"),
    ],
)
def test_wrong_envelope_is_refused(envelope: Envelope, said: str) -> None:
    with pytest.raises(WireError, match=said):
        encode_envelope(envelope)


def test_large_envelope_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(WireError, match="an envelope has 1048577 bytes; 1048576 are the most"):
        decode_envelope(b"\xff" * (LIMITS.payload_bytes_max + 1))


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (Ack("", bytes(8), 1, bytes(16), 0), "use a name"),
        (Ack("f", bytes(7), 1, bytes(16), 0), "an epoch has 8 bytes"),
        (Ack("f", bytes(8), 0, bytes(16), 0), "a seq is at least 1"),
        (Ack("f", bytes(8), 1, bytes(15), 0), "a digest has 16 bytes"),
        (Ack("f", bytes(8), 1, bytes(16), -1), "a term is never negative"),
        (Nack("f", bytes(8), 0, NackReason.GAP, 0), "a seq is at least 1"),
        (Welcome("", bytes(8), {}, {}, 0), "use a name"),
        (Welcome("f", bytes(9), {}, {}, 0), "an epoch has 8 bytes"),
        (Welcome("f", bytes(8), {("q", ""): SplitProgress(0, 0)}, {}, 0), "has no name"),
        (Welcome("f", bytes(8), {}, {"\n": 1}, 0), "cannot name a channel"),
        (Welcome("f", bytes(8), {}, {"a": 2**63}, 0), "cannot be encoded"),
        (Welcome("f", bytes(8), {}, {}, 0, {"\n": 1}), "cannot name a channel or a step"),
        (Welcome("f", bytes(8), {}, {}, 0, {f"s{n}": 1 for n in range(1_025)}), "more than 1024 watermarks"),
        (Welcome("f", bytes(8), {}, {f"c{n}": 1 for n in range(1_025)}, 0), "more than 1024 watermarks"),
        (Offer("f", bytes(8), 0, 0), "the ordinal of an epoch is at least 1"),
        (Offer("f", bytes(8), 2**63, 0), "the ordinal of an epoch is at least 1 and fits 64 bits"),
        (Offer("f", b"", 1, 0), "an epoch has 8 bytes"),
        (Nack("f", bytes(8), 1, NackReason.GAP, 2**63), "a term is never negative and fits 64 bits"),
    ],
)
def test_wrong_control_is_refused(control: Control, said: str) -> None:
    with pytest.raises(WireError, match=said):
        encode_control(control)


def test_control_of_no_kind_is_refused() -> None:
    def summed(raw: pb.Control) -> bytes:
        raw.checksum = zlib.crc32(raw.SerializeToString())
        encoded: bytes = raw.SerializeToString()
        return encoded

    with pytest.raises(WireError, match="does not fit its checksum"):
        decode_control(b"")
    with pytest.raises(WireError, match="neither an ack nor a NACK"):
        decode_control(summed(pb.Control()))
    raw = pb.Nack(flow="f", epoch=bytes(8), seq=1)
    with pytest.raises(WireError, match="unknown reason 0"):
        decode_control(summed(pb.Control(nack=raw)))


@pytest.mark.parametrize(
    ("channels", "texts", "said"),
    [
        (["a"], [], "1 channels and 0 schemas"),
        (["a"], ["{"], "cannot be read"),
        (["a"], ["[" * 100_000], "cannot be read"),
        (["a"], ['{"name":"Q","fields":[["x","int65",false]],"scalar":false}'], "cannot be read"),
        (
            ["a"],
            ['{"name":"Q","fields":[["x","%s",false]],"scalar":false}' % ("\u202e" * 9_000)],
            "cannot be read",
        ),
        (["a"], ['{"name":"Q","fields":[["x",[],false]],"scalar":false}'], "cannot be read"),
        (["a"], ['{"name":"\\ud800","fields":[],"scalar":false}'], "not printable"),
        (["a"], ['{"name":"","fields":[],"scalar":false}'], "is empty"),
        (["a\n"], [SCHEMA.to_json()], "cannot name a channel"),
        (["a", "a"], [SCHEMA.to_json()] * 2, "names the channel a twice"),
        (["a"] * 2_000, [SCHEMA.to_json()] * 2_000, "2000 channels"),
    ],
)
def test_wrong_schemas_are_refused(channels: list[str], texts: list[str], said: str) -> None:
    data = pb.Schemas(channels=channels, schemas=texts).SerializeToString()
    with pytest.raises(WireError, match=said) as caught:
        decode_schemas(data)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 300


def test_schema_with_too_many_fields_is_refused() -> None:
    wide = Schema("Wide", tuple(Field(f"f{n}", FieldType.BOOL) for n in range(LIMITS.names_max)))
    with pytest.raises(WireError, match="more than 1024 fields"):
        encode_schemas({"a": wide})
