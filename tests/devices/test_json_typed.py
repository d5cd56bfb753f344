"""The typed reading of JSON documents against the reading by paths: the same records, the same reasons."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from geartrain import Record
from geartrain.errors import SourceError
from geartrain_devices import text_files
from geartrain_devices.json_fields import KEYS_MAX, JsonFields
from geartrain_devices.json_lines import JsonReader
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.text_bytes import not_utf8


class Reading(Record):
    """All plain types, and what may be missing."""

    sensor: str
    value: float
    count: int
    good: bool
    note: str | None = None
    rank: int = 7
    level: float | None = None
    limit: float | None = 2.5
    offset: float = 0  # an int, which the paths make a float


class Plain(Record):
    """A typed decoder reads all of these."""

    sensor: str
    value: float
    count: int
    good: bool | None
    note: str | None = None
    rank: int = 7


class Timed(Record):
    """Its time is a field of it as well."""

    at: int
    value: float


class TextTimed(Record):
    """The same of a text."""

    at: str


class FloatTimed(Record):
    """The same of a float, which is not what was written."""

    at: float


KINDS = [(kind, time) for kind in (Reading, Plain) for time in ("at", "")] + [
    (Timed, "at"),
    (TextTimed, "at"),
    (FloatTimed, "at"),
]
KEYS = [
    "sensor",
    "value",
    "count",
    "good",
    "note",
    "rank",
    "level",
    "limit",
    "offset",
    "at",
    "other",
    "$topic",
]

numbers = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([-0.0, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, 1e308, 5.0, 1e15]),
).map(json.dumps)
odd = st.sampled_from(
    [
        *(
            "-0",
            "1e999",
            "9" * 400,
            "9" * 5000,
            "01",
            "1.",
            "NaN",
            "-Infinity",
            "1E2",
            "5.0",
            "-0.0",
            "1e-400",
        ),
        *('"\\ud800"', '"\\u00e9"', '"\x01"', '"é"', '"2020-01-01T00:00:00Z"', '"1970-01-01"'),
        "[" * 2000 + "]" * 2000,
    ]
)
values = st.one_of(
    numbers,
    odd,
    st.text().map(json.dumps),
    st.text().map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(["true", "false", "null", "[]", "{}", '[{"a": 1}]', '{"value": 1}']),
)
fitting = {
    "sensor": st.text().map(json.dumps),
    "value": numbers,
    "count": st.integers(-(2**63), 2**63 - 1).map(json.dumps),
    "good": st.sampled_from(["true", "false"]),
    "at": st.one_of(st.integers(0, 10**9), st.floats(0, 1e9)).map(json.dumps),
}


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Mostly records, with keys missing, doubled, unknown or escaped, cut and damaged."""
    pairs = [(key, draw(fitting[key])) for key in fitting if draw(st.integers(0, 9))]
    pairs += draw(st.lists(st.tuples(st.sampled_from(KEYS), values), max_size=4))
    pairs = draw(st.permutations(pairs))
    raw = ("{" + ",".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}").encode(
        "utf-8", "surrogatepass"
    )
    match draw(st.integers(0, 9)):
        case 0:
            at = draw(st.integers(0, len(raw)))
            return raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 2)) :]
        case 1:
            return draw(values).encode("utf-8", "surrogatepass")
    return raw


def outcome(fields: JsonFields, raw: bytes, topic: str | None) -> str:
    """A record with the bits of its floats, or the reason."""
    try:
        time_us, record = fields.read(raw, topic)
    except ValueError as error:
        return f"refused: {error}"
    return shown(time_us, record)


def shown(time_us: int | None, record: Any) -> str:
    """A record with the bits of its floats."""
    return f"{time_us} {type(record)} {[(type(v), v) for v in msgspec.structs.astuple(record)]!r}"


@given(
    documents(), st.sampled_from(KINDS), st.sampled_from(["s", "ms", "us"]), st.sampled_from([None, "a/b"])
)
@example(b'{"at": 1, "value": 2, "x": "\xff"}', (Timed, "at"), "s", None)
@example(b'{"at": 1, "value": 2, "\xff": 1}', (Timed, "at"), "s", None)
@example(b'{"at": 1, "value": 2, "x": 1e999}', (Timed, "at"), "s", None)
@example(b'{"at": 1, "value": "x", "value": 2}', (Timed, "at"), "s", None)
@example(b'{"at": 9007199254740993}', (FloatTimed, "at"), "us", None)
@example(b'{"at": 1.5, "value": 2}', (Timed, "at"), "s", None)
@example(b"", (Timed, "at"), "s", None)
def test_both_ways_give_the_same(
    raw: bytes, how: tuple[type[Record], str], unit: str, topic: str | None
) -> None:
    kind, time = how
    typed, by_paths = (JsonFields("source s", kind, time, ValueOptions(time_unit=unit), {}) for _ in range(2))
    by_paths._typed = None
    known = outcome(by_paths, raw, topic)
    assert outcome(typed, raw, topic) == known
    assert outcome(typed, raw, topic) == known, "with what was learnt of the keys"


def _typed(kind: Any, time: str = "at", paths: dict[str, str] | None = None) -> bool:
    return JsonFields("source s", kind, time, ValueOptions(), paths or {})._typed is not None


def test_which_types_are_read_typed() -> None:
    assert _typed(Plain)
    assert _typed(Plain, "")
    assert _typed(Plain, "at", {"sensor": "name"})
    assert _typed(Timed)
    assert not _typed(FloatTimed), "its time is read as it is written"
    assert not _typed(Reading), "the paths make its default a float"
    assert not _typed(Plain, "meta.at")
    assert not _typed(Plain, "at", {"sensor": "$topic[1]"})
    assert not _typed(float, "", {"value": "$value"})


def test_keys_are_learnt_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = JsonFields("source s", Timed, "at", ValueOptions(time_unit="s"), {})
    slow: list[Any] = []
    pick = fields.pick

    def picked(document: Any) -> tuple[int | None, Any]:
        slow.append(document)
        return pick(document)

    monkeypatch.setattr(fields, "pick", picked)
    for n in (1, 1, 1, KEYS_MAX, KEYS_MAX + 1, KEYS_MAX + 1):
        others = "".join(f', "x{k}": 0' for k in range(n))
        assert fields.read(b'{"at": 1, "value": 2%s}' % others.encode()) == (1_000_000, Timed(1, 2.0))
    assert len(slow) == 4, "one for each new set of keys, and each of those that are too many"


@settings(deadline=None)
@given(st.lists(documents(), min_size=1, max_size=6), st.sampled_from(KINDS), st.sampled_from(["s", "us"]))
@example([b'{"at": 1, "value": 2}', b'{"at": -0, "value": -0}'], (Timed, "at"), "s")
@example([b'{"at": 1, "value": 2}', b'{"at": 1, "value": 2, "x": 1e999}'], (Timed, "at"), "s")
@example([b'{"at": "2020-01-01T00:00:00Z"}', b'{"at": "2020-01-01T24:00:01Z"}'], (TextTimed, "at"), "s")
def test_a_batch_gives_what_its_documents_give(
    raws: list[bytes], how: tuple[type[Record], str], unit: str
) -> None:
    kind, time = how
    batch, by_paths = (JsonFields("source s", kind, time, ValueOptions(time_unit=unit), {}) for _ in range(2))
    by_paths._typed = None
    known = [outcome(by_paths, raw, None) for raw in raws]
    for _ in range(2):  # once more with what was learnt of the keys
        found = batch.read_all(raws)
        if found is not None:
            assert [shown(*one) for one in zip(*found, strict=True)] == known
        for raw in raws:
            outcome(batch, raw, None)


def test_plain_documents_are_read_by_the_batch() -> None:
    raws = [b'{"sensor": "-0", "value": -0, "count": %d, "good": null, "at": %d}' % (n, n) for n in range(9)]
    found = JsonFields("source s", Plain, "at", ValueOptions(), {}).read_all(raws)
    assert found is not None
    assert [str(record.value) for record in found[1]] == ["-0.0"] * 9


@settings(deadline=None)
@given(st.lists(documents(), max_size=6), st.sampled_from(KINDS), st.integers(20, 2_000))
def test_a_file_gives_what_its_lines_give(
    raws: list[bytes], how: tuple[type[Record], str], chunk_bytes: int
) -> None:
    kind, time = how[0], how[1] or "at"
    lines = [line for raw in raws for line in raw.split(b"\n")]
    one_by_one = JsonFields("source s", kind, time, ValueOptions(), {})
    one_by_one._typed = None
    known: list[Any] = []
    for number, line in enumerate(lines, 1):
        raw = line.rstrip(b"\r\n")
        if raw.strip():
            said = outcome(one_by_one, raw, None)
            known.append((number, said, raw if said.startswith("refused: ") else b""))
    with TemporaryDirectory() as folder, patch.object(text_files, "_CHUNK_BYTES", chunk_bytes):
        path = Path(folder) / "in.jsonl"
        path.write_bytes(b"\n".join(lines))
        reader = JsonReader(str(path), JsonFields("source s", kind, time, ValueOptions(), {}))
        try:
            chunks = list(reader.chunks())
        except SourceError:
            assume(False)  # its beginning is no text
    found: list[Any] = []
    for chunk in chunks:
        records = zip(chunk.lines, chunk.times, chunk.records, strict=True)
        of_chunk = [(line, shown(time_us, record), b"") for line, time_us, record in records]
        of_chunk += [
            (row.line, f"refused: {row.problem.removeprefix(f'in.jsonl, line {row.line}: ')}", row.raw)
            for row in chunk.problems
        ]
        found += sorted(of_chunk, key=lambda row: row[0])
    assert [(line, raw) for line, _, raw in found] == [(line, raw) for line, _, raw in known]
    for (_, said, _), (_, wanted, raw) in zip(found, known, strict=True):
        assert said == wanted or not_utf8(raw) or b"\0" in raw, "the reader names the byte of what is no text"
