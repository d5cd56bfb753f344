"""A question on its way through a micro-batch: from the reader to the shards that may hold the key, and back.

Inside Spark's workers, where a flow's own code is. Guarantees: state is read and never written; no step is
opened or fed. A question that cannot be answered becomes the sentence that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from geartrain.control.questions import KEYS_MAX
from geartrain.errors import GeartrainError, QuestionError, SchemaError
from geartrain.runtime.asking import check_asked, keys_of, shown_key, tell
from geartrain_cloud.hosting.offsets import ANSWER, ASKED
from geartrain_cloud.hosting.questions import Answer, Question
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.spark.buckets import BucketState, StateMap
from geartrain_cloud.spark.clocks import least_clock, sources_of
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.shards import shard_of


class Asked(msgspec.Struct, frozen=True):
    """A question in a micro-batch.

    positions, clocks: of its end; stage: which keeps the step's state; keys: those encoded keys that the
    question may mean, none where some are to be named.
    """

    question: Question
    positions: dict[str, int]
    clocks: dict[str, int]
    stage: int = 0
    keys: tuple[bytes, ...] = ()


class Sent(msgspec.Struct, frozen=True):
    """A row that a question becomes: to shard number `shard` of a stage, or an answer to stage 0."""

    shard: int
    stage: int
    stream: str
    packed: bytes


_decode = msgspec.msgpack.Decoder(Asked).decode
_encode = msgspec.msgpack.Encoder().encode


def sent(query: Query, hosted: Hosted, asked: Sequence[Asked]) -> list[Sent]:
    """The rows that questions of one flow become."""
    found = []
    for one in asked:
        try:
            found += _sent(query, len(hosted.labels), one)
        except GeartrainError as error:
            found.append(Sent(0, 0, ANSWER, _encode(_answer(query, hosted, one, refused=str(error)))))
    return found


def _sent(query: Query, shards: int, asked: Asked) -> list[Sent]:
    step, key = asked.question.step, asked.question.key
    check_asked(query.graph, step)
    stage = next((one.number for one in query.stages[1:] if step in one.steps), None)
    if stage is None:
        raise QuestionError(f"step {step!r} runs on the devices: its state is there, and is not told here")
    keys = [] if key is None else keys_of(query.graph, step, key)
    homes: dict[int, list[bytes]] = {shard: [] for shard in range(shards)} if key is None else {}
    for one in keys:
        homes.setdefault(shard_of(one, shards), []).append(one)
    return [
        Sent(shard, stage, ASKED, _encode(msgspec.structs.replace(asked, stage=stage, keys=tuple(mine))))
        for shard, mine in homes.items()
    ]


def answered(query: Query, hosted: Hosted, state: StateMap, packed: bytes) -> bytes:
    """What a shard answers to a row of `sent`, out of its map of buckets."""
    asked = _decode(packed)
    saved = BucketState(state, len(hosted.labels), hosted.buckets)
    step = asked.question.step
    try:
        if asked.question.key is None:
            keys = [shown_key(key) for key in saved.keys(step, KEYS_MAX)]
            return _encode(_answer(query, hosted, asked, keys=keys, found=bool(keys)))
        for key in asked.keys:
            cell = saved.load(step, key)
            if cell is not None:
                told = tell(query.graph, step, key, cell)
                return _encode(_answer(query, hosted, asked, key=shown_key(key), found=True, told=told))
    except (QuestionError, SchemaError) as error:
        return _encode(_answer(query, hosted, asked, refused=str(error)))
    return _encode(_answer(query, hosted, asked, key=shown_key(asked.keys[0])))


def _answer(query: Query, hosted: Hosted, asked: Asked, **said: object) -> Answer:
    step, clock = asked.question.step, None
    if any(one.id == step for one in query.graph.steps):
        clock = least_clock(asked.clocks, sources_of(query.graph, [step])[step])
    place: Mapping[str, object] = {"positions": asked.positions, "clocks": asked.clocks, "clock_us": clock}
    return msgspec.convert({"id": asked.question.id, "run": hosted.run, **place, **said}, Answer)


def read_answers(packed: Sequence[bytes]) -> list[Answer]:
    """The answers that came to the end of a micro-batch."""
    return [msgspec.msgpack.decode(one, type=Answer) for one in packed]
