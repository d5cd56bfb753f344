"""What travels on the control lane: read back as it was written, and refused whatever else it is."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.control import lane_pb2 as pb
from geartrain.control.codec import (
    decode_desired,
    decode_kept,
    decode_reported,
    decode_state,
    encode_desired,
    encode_kept,
    encode_reported,
    encode_state,
)
from geartrain.control.limits import LANE_LIMITS, LaneLimits
from geartrain.control.states import (
    INSTALLED_PROGRAM,
    SECRETS,
    App,
    AppReport,
    AppState,
    Desired,
    Kept,
    Measured,
    Reported,
    State,
    StepKept,
    Wanted,
    state_digest,
)
from geartrain.errors import WireError
from geartrain.errors.reason import Reason, make_reason

OPTIONS = '{"sources":{"loops":{"path":"x"}}}'
APP = App("traffic.3", "city.flows:traffic", "ab" * 32, "cloud", OPTIONS, code="cd" * 32, own_cut="fast")
STATE = State(7, (APP, App("cold.1", "cold:flow", wanted=Wanted.DRAIN)), ("traffic.2",), "ef" * 32)
STATE_BYTES = encode_state(STATE)
DESIRED = Desired("truck-1", b"12345678", 3, 9, STATE_BYTES)
REPORTED = Reported(
    "truck-1",
    b"12345678",
    3,
    10,
    7,
    state_digest(STATE_BYTES),
    (
        AppReport(
            "traffic.3",
            AppState.FAILED,
            "it ended with 1",
            "ab" * 32,
            ("loops", "gps"),
            "fast",
            Measured(120.5, 0.25, 3.5, 1 << 30, (StepKept("sums", 12, 300), StepKept("order", 0, 0))),
            (make_reason("awaits_state", unmoved="\u00fc late", tries=3, share=0.5), Reason("went_back")),
        ),
    ),
    "0.3.0",
    "the disk is full",
    "ef" * 32,
    "it went back: it hangs",
    "3.11 aarch64",
    (SECRETS,),
    program_went_back=True,
)
KEPT = Kept(3, STATE_BYTES)

WRITTEN: list[tuple[str, bytes, Callable[[bytes], Any], Any]] = [
    ("state", STATE_BYTES, decode_state, STATE),
    ("desired", encode_desired(DESIRED), decode_desired, DESIRED),
    ("question", encode_desired(Desired("truck-1")), decode_desired, Desired("truck-1")),
    ("reported", encode_reported(REPORTED), decode_reported, REPORTED),
    ("kept", encode_kept(KEPT), decode_kept, KEPT),
    ("nothing kept", encode_kept(Kept()), decode_kept, Kept()),
]
IDS = [name for name, *_ in WRITTEN]


def _because(*reasons: Reason) -> AppReport:
    return AppReport("a.1", AppState.RUNNING, reasons=reasons)


def _measured(**figures: Any) -> AppReport:
    return AppReport("a.1", AppState.RUNNING, measured=Measured(**figures))


@pytest.mark.parametrize(("name", "data", "decode", "value"), WRITTEN, ids=IDS)
def test_it_is_read_back(name: str, data: bytes, decode: Callable[[bytes], Any], value: Any) -> None:
    assert decode(data) == value


@pytest.mark.parametrize(("name", "data", "decode", "value"), WRITTEN[1:], ids=IDS[1:])
def test_no_bit_can_change_and_no_byte_be_lost(
    name: str, data: bytes, decode: Callable[[bytes], Any], value: Any
) -> None:
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:length])
    with pytest.raises(WireError):
        decode(data + b"\x60\x01")


@pytest.mark.parametrize("decode", [decode_state, decode_desired, decode_reported, decode_kept])
@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    said = ""
    try:
        decode(data)
    except WireError as error:
        said = str(error)
    assert said.isprintable()


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_state_is_within_the_caps_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(STATE_BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        state = decode_state(bytes(damaged))
    except WireError:
        return
    assert state.serial >= 1
    assert encode_state(state)  # what was taken can be written


def test_bytes_that_version_1_wrote_are_read_for_ever() -> None:
    kept = bytes.fromhex("080112160a03612e311a036d3a6622046175746f2a027b7d3001")
    state = State(1, (App("a.1", "m:f"),))
    assert decode_state(kept) == state
    assert encode_state(state) == kept


WRONG_STATES = [
    (State(0), "serial 0"),
    (State(1, (App("a/b", "m:f"),)), "use a name of"),
    (State(1, (App("..", "m:f"),)), "cannot name a folder"),
    (State(1, (), (".",)), "cannot name a folder"),
    (State(1, (App("a.1", "m:f"), App("a.1", "m:g"))), "twice"),
    (State(1, (App("a.1", "m:f"),), ("a.1",)), "wanted and purged"),
    (State(1, (App("a.1", "m:f", "AB" * 32),)), "64 hexadecimal digits"),
    (State(1, program="EF" * 32), "a program is 64 hexadecimal digits"),
    (State(1, (App("a.1", "m" * 4_097),)), "4096 are the most"),
    (State(1, (App("a.1", "m:f", options="x" * 65_537),)), "65536 are the most"),
    (State(1, tuple(App(f"a.{n}", "m:f") for n in range(65))), "more than 64 apps"),
    (State(1, tuple(App(f"a.{n}", "m:f", options="x" * 60_000) for n in range(5))), "262144 are the most"),
]


@pytest.mark.parametrize(("state", "said"), WRONG_STATES)
def test_a_state_beyond_the_caps_is_not_written(state: State, said: str) -> None:
    with pytest.raises(WireError, match=said):
        encode_state(state)


def test_a_state_beyond_the_caps_is_not_read() -> None:
    apps = [pb.State.App(instance=f"a.{n}", flow="m:f", wanted=pb.State.RUN) for n in range(65)]
    with pytest.raises(WireError, match="more than 64 apps"):
        decode_state(pb.State(serial=1, apps=apps).SerializeToString())
    wrong = pb.State.App(instance="a.1", flow="m:f", wanted=9)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="wants 9 of an app"):
        decode_state(pb.State(serial=1, apps=[wrong]).SerializeToString())
    with pytest.raises(WireError, match="262144 are the most"):
        decode_state(bytes(LANE_LIMITS.state_bytes_max + 1))
    with pytest.raises(WireError, match="10 are the most"):
        decode_desired(encode_desired(DESIRED), LaneLimits(state_bytes_max=10 - 1_024))


def test_a_report_beyond_the_caps_is_not_written() -> None:
    def report(**parts: Any) -> Reported:
        whole: dict[str, Any] = {"device": "d", "session": b"12345678", "life": 1, "number": 1}
        return Reported(**whole | parts)

    assert encode_reported(report())
    for parts, said in (
        ({"session": b"1"}, "session has 1 bytes"),
        ({"life": 0}, "life 0"),
        ({"serial": 1}, "digest of desired state 1 has 0 bytes"),
        ({"why": "x" * 401}, "400 are the most"),
        ({"apps": (AppReport("a.1", AppState.RUNNING, "x" * 401),)}, "400 are the most"),
        ({"apps": (AppReport("a.1", AppState.RUNNING, lacks=("a",) * 65),)}, "more than 64 sources"),
        ({"apps": (AppReport("a.1", AppState.RUNNING, lacks=("a b",)),)}, "use a name"),
        ({"apps": (AppReport("a.1", AppState.RUNNING, cut="x" * 201),)}, "200 are the most"),
        ({"apps": (_because(*[Reason("a")] * 9),)}, "more than 8 reasons"),
        ({"apps": (_because(Reason("Went back")),)}, "use small letters and _"),
        ({"apps": (_because(Reason("")),)}, "use small letters and _"),
        ({"apps": (_because(Reason("a", {str(n): n for n in range(17)})),)}, "more than 16 details"),
        ({"apps": (_because(make_reason("a", why="x" * 401)),)}, "400 are the most"),
        ({"apps": (_measured(cpu_share=float("nan")),)}, "no number from 0 on"),
        ({"apps": (_measured(free_bytes=-1),)}, "no number from 0 on"),
        ({"apps": (_measured(kept=(StepKept("sums", -1, 0),)),)}, "no number from 0 on"),
        ({"apps": (_measured(kept=(StepKept("sums", 1, 1),) * 17),)}, "state of more than 16 steps"),
        ({"can": ("a",) * 65}, "more than 64 things"),
        ({"device": "a b"}, "use a name"),
        ({"program_code": "ef"}, "a program is 64 hexadecimal digits"),
        ({"program_why": "x" * 401}, "400 are the most"),
        ({"machine": "x" * 4_097}, "4096 are the most"),
    ):
        with pytest.raises(WireError, match=said):
            encode_reported(report(**parts))


def test_the_installed_program_is_asked_for_beside_the_field_of_hashes() -> None:
    state = State(1, program=INSTALLED_PROGRAM)
    assert decode_state(encode_state(state)) == state
    assert pb.State.FromString(encode_state(state)).program == ""  # what an older program reads
    both = pb.State(serial=1, program="ef" * 32, installed_program=True)
    with pytest.raises(WireError, match="the installed program and for another one"):
        decode_state(both.SerializeToString())


def test_another_version_is_refused() -> None:
    raw = pb.Desired(version=2, device="d")
    raw.checksum = zlib.crc32(raw.SerializeToString())
    with pytest.raises(WireError, match="version 2; this program speaks version 1"):
        decode_desired(raw.SerializeToString())
