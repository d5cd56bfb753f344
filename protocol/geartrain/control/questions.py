"""Questions to a flow on a device, and its answers, as data and as bytes.

On both ends of the `ask` and `told` topics. Nothing of this is sent again: who hears no answer asks again.
Guarantees: arbitrary bytes raise only `WireError`, and what decodes is within the caps.
"""

from __future__ import annotations

from typing import Any

import msgspec

from geartrain.control import question_pb2 as pb
from geartrain.control.states import VERSION
from geartrain.control.summed import check_sum, check_version, with_checksum
from geartrain.errors import WireError
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain.wire.parsing import check_size, parse

ID_CHARS = 32
"""Hexadecimal digits, drawn at random."""
STEP_CHARS_MAX, KEY_CHARS_MAX = 200, 1_000
TOLD_BYTES_MAX = 256 << 10
"""Of what is told, as JSON."""
KEYS_MAX = 20
"""Keys that are named where nobody has said which."""
_BYTES_MAX = TOLD_BYTES_MAX + (8 << 10)


class DeviceQuestion(msgspec.Struct, frozen=True):
    """id: its own; step: whose state; key: as a person wrote it, None to be told some of the keys."""

    id: str
    step: str
    key: str | None = None


class ToldByDevice(msgspec.Struct, frozen=True):
    """key: as JSON has it; found: whether the step keeps anything of it; told: the fields of
    `geartrain.state.told.Told`; keys: some of the step's, where none was asked for; refused: the sentence
    where there is no answer.
    """

    key: Any = None
    found: bool = False
    told: dict[str, Any] = {}
    keys: list[Any] = []
    refused: str = ""


class DeviceAnswer(msgspec.Struct, frozen=True):
    """The state of a key at a commit of the device. id: of the question; epoch, seq: of the last batch that
    the spool held then; clock_us: how far the step's sources had come, microseconds, None for not yet.
    """

    id: str
    epoch: bytes
    seq: int
    clock_us: int | None
    told: ToldByDevice


_TOLD = msgspec.json.Decoder(ToldByDevice)


def encode_question(question: DeviceQuestion) -> bytes:
    """The payload of an `ask` topic; raises `WireError` where it could not be decoded."""
    _check_question(question)
    raw = pb.Question(version=VERSION, id=question.id, step=question.step, key=question.key)
    return with_checksum(raw, "a question", _BYTES_MAX)


def decode_question(data: bytes) -> DeviceQuestion:
    """What came on an `ask` topic; raises `WireError`."""
    raw = parse(pb.Question, data, "a question", _BYTES_MAX)
    check_sum(raw, data, "a question")
    check_version(raw.version)
    question = DeviceQuestion(raw.id, raw.step, raw.key if raw.HasField("key") else None)
    _check_question(question)
    return question


def encode_answer(answer: DeviceAnswer) -> bytes:
    """The payload of a `told` topic; raises `WireError` where it could not be decoded."""
    told = msgspec.json.encode(answer.told)
    check_size(told, "an answer", TOLD_BYTES_MAX)
    raw = pb.Answer(
        version=VERSION, id=answer.id, epoch=answer.epoch, seq=answer.seq, clock=answer.clock_us, told=told
    )
    return with_checksum(raw, "an answer", _BYTES_MAX)


def decode_answer(data: bytes) -> DeviceAnswer:
    """What came on a `told` topic; raises `WireError`."""
    raw = parse(pb.Answer, data, "an answer", _BYTES_MAX)
    check_sum(raw, data, "an answer")
    check_version(raw.version)
    _check_id(raw.id)
    if len(raw.epoch) != EPOCH_BYTES or raw.seq < 0:
        raise WireError("an answer does not say at which commit it is so")
    try:
        told = _TOLD.decode(raw.told)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"an answer tells no state: {error}") from None
    return DeviceAnswer(raw.id, raw.epoch, raw.seq, raw.clock if raw.HasField("clock") else None, told)


def _check_question(question: DeviceQuestion) -> None:
    _check_id(question.id)
    if not 0 < len(question.step) <= STEP_CHARS_MAX:
        raise WireError(f"a question names a step of {len(question.step)} characters")
    if question.key is not None and len(question.key) > KEY_CHARS_MAX:
        raise WireError(
            f"a question has a key of {len(question.key)} characters; {KEY_CHARS_MAX} are the most"
        )


def _check_id(text: str) -> None:
    if len(text) != ID_CHARS or not set(text) <= set("0123456789abcdef"):
        raise WireError(f"a question has {ID_CHARS} hexadecimal digits as its id, not {text[:80]!r}")
