"""The spool: whole commits or nothing, one owner, its own device, 0600, one sentence for what is wrong."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.errors import SpoolError
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch, SpoolImage, StateSize
from geartrain.records.event_time import START_OF_TIME
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import run
from tests.waiting import WAIT_S

EPOCH = b"epoch..8"


def batches(first: int, count: int) -> list[SpooledBatch]:
    return [
        SpooledBatch(seq, b"h%d" % seq, b"b" * seq, seq.to_bytes(16, "big"), 3)
        for seq in range(first, first + count)
    ]


async def opened(path: Path, device: str = "d1", flow: str = "fleet") -> tuple[SqliteSpool, SpoolImage]:
    spool = SqliteSpool(path)
    try:
        return spool, await spool.open(device, flow, EPOCH)
    except SpoolError:
        await spool.close()
        raise


def image_of(path: Path) -> SpoolImage:
    async def read() -> SpoolImage:
        spool, image = await opened(path)
        await spool.close()
        return image

    found: SpoolImage = run(read())
    return found


def failure(work: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(SpoolError) as caught:
        run(work)
    return str(caught.value)


def test_a_spool_keeps_its_epoch_from_the_first_commit_on(tmp_path: Path) -> None:
    path = tmp_path / "state" / "spool.sqlite"
    fresh = SpoolImage(EPOCH, 0, 0, FIRST_DIGEST, 0, {}, {}, {}, FIRST_DIGEST)
    assert image_of(path) == fresh
    before = path.read_bytes()

    async def life(epoch: bytes, last_seq: int) -> SpoolImage:
        spool = SqliteSpool(path)
        image = await spool.open("d1", "fleet", epoch)
        await spool.commit(SpoolCommit(batches(last_seq + 1, last_seq + 1)))
        await spool.close()
        return image

    assert run(life(b"another!", 0)) == replace(fresh, epoch=b"another!")
    assert run(life(b"a third.", 1)).epoch == b"another!"
    path.write_bytes(before)  # set back to where nothing was said under either epoch
    assert run(life(b"a third.", 0)) == replace(fresh, epoch=b"a third.")


def test_all_of_a_commit_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        spool, _ = await opened(tmp_path / "s.sqlite")
        positions = {("a", "x"): SplitProgress(4, START_OF_TIME), ("b", "y"): SplitProgress(7, 99, True)}
        await spool.commit(
            SpoolCommit(batches(1, 3), positions, {("a", b"k"): b"1", ("a", b"l"): b"2"}, {"c": 5, "d": 1})
        )
        await spool.commit(
            SpoolCommit(
                [], {("a", "x"): SplitProgress(5, 3)}, {("a", b"k"): None, ("a", b"l"): b"3"}, {"c": 6}
            )
        )
        await spool.commit(SpoolCommit(batches(4, 2)))
        assert [batch.seq for batch in await spool.read(0, 10)] == [1, 2, 3, 4, 5]
        assert await spool.read(3, 1) == batches(4, 1)
        assert await spool.read(5, 10) == []
        await spool.trim(2)
        assert await spool.read(0, 2) == batches(3, 2)
        await spool.close()

    run(story())
    held = sum(batch.size for batch in batches(3, 3))
    assert image_of(tmp_path / "s.sqlite") == SpoolImage(
        EPOCH,
        5,
        2,
        batches(5, 1)[0].digest,
        held,
        {("a", "x"): SplitProgress(5, 3), ("b", "y"): SplitProgress(7, 99, True)},
        {("a", b"l"): b"3"},
        {"c": 6, "d": 1},
        batches(2, 1)[0].digest,
    )


def test_it_knows_how_much_it_keeps_of_each_step(tmp_path: Path) -> None:
    def counted(image: SpoolImage) -> dict[str, StateSize]:
        steps = {step for step, _ in image.state}
        cells = {one: [cell for (step, _), cell in image.state.items() if step == one] for one in steps}
        return {step: StateSize(len(some), sum(map(len, some))) for step, some in cells.items()}

    async def story() -> None:
        rng, path, before = random.Random(3), tmp_path / "s.sqlite", dict[str, StateSize]()
        for _ in range(4):
            spool, image = await opened(path)
            assert spool.kept() == counted(image)
            for _ in range(10):
                keys = {(rng.choice("abc"), b"%d" % rng.randrange(30)) for _ in range(20)}
                cells = {at: None if rng.random() < 0.5 else b"x" * rng.randrange(9) for at in keys}
                await spool.commit(SpoolCommit(state=cells))
            before = dict(spool.kept())
            with pytest.raises(SpoolError):
                await spool.commit(SpoolCommit(batches(7, 1), state={("a", b"new"): b"x"}))
            assert spool.kept() == before
            await spool.close()
        assert before == counted(image_of_now(path)) != {}

    run(story())


def image_of_now(path: Path) -> SpoolImage:
    """What the file holds, read by SQLite alone."""
    with sqlite3.connect(path) as database:
        state = {(step, key): value for step, key, value in database.execute("SELECT * FROM state")}
    return SpoolImage(EPOCH, 0, 0, FIRST_DIGEST, 0, {}, state, {})


def test_seq_and_digest_outlive_the_last_batch(tmp_path: Path) -> None:
    async def story() -> None:
        spool, _ = await opened(tmp_path / "s.sqlite")
        await spool.commit(SpoolCommit(batches(1, 3)))
        await spool.trim(3)
        await spool.close()

    run(story())
    image = image_of(tmp_path / "s.sqlite")
    assert (image.last_seq, image.acked_seq, image.spooled_bytes) == (3, 3, 0)
    assert image.digest == batches(3, 1)[0].digest


def test_a_batch_that_does_not_follow_on_is_refused_with_its_whole_commit(tmp_path: Path) -> None:
    async def story() -> None:
        spool, _ = await opened(tmp_path / "s.sqlite")
        try:
            await spool.commit(SpoolCommit([*batches(1, 2), *batches(4, 1)], {}, {("a", b"k"): b"1"}))
        finally:
            await spool.close()

    assert "batch 4 does not follow on 2" in failure(story())
    assert image_of(tmp_path / "s.sqlite") == SpoolImage(
        EPOCH, 0, 0, FIRST_DIGEST, 0, {}, {}, {}, FIRST_DIGEST
    )


def test_what_was_never_committed_cannot_be_trimmed(tmp_path: Path) -> None:
    async def story() -> None:
        spool, _ = await opened(tmp_path / "s.sqlite")
        try:
            await spool.trim(1)
        finally:
            await spool.close()

    assert "cannot trim 1, its last batch is 0" in failure(story())


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        spool, _ = await opened(tmp_path / "s.sqlite")
        assert spool._database is not None
        room = "PRAGMA max_page_count=30"
        await spool._run(lambda: spool._opened().execute(room).fetchall())
        try:
            await spool.commit(SpoolCommit(batches(1, 2), {}, {("a", b"k"): b"x" * 1_000_000}))
        finally:
            await spool.close()

    assert "the disk is full: make room and start the agent again" in failure(story())
    assert image_of(tmp_path / "s.sqlite").last_seq == 0


class FailingSync:
    """A connection on which one commit fails as where fsync says EIO: SQLite has rolled back by then."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database, self.failures = database, 1

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.failures:
            self.failures -= 1
            self._database.execute("ROLLBACK")
            raise sqlite3.OperationalError("disk I/O error")
        return self._database.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def test_a_commit_that_the_disk_fails_leaves_nothing_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"

    async def story() -> None:
        spool, _ = await opened(path)
        await spool.commit(SpoolCommit(batches(1, 1), counters={"records": 1}))
        assert spool._database is not None
        spool._database = FailingSync(spool._database)  # type: ignore[assignment]
        with pytest.raises(SpoolError, match="disk I/O error"):
            await spool.commit(SpoolCommit(batches(2, 1), counters={"records": 2}))
        await spool.commit(SpoolCommit(counters={"resends": 1}))  # an agent that ends writes its counters
        await spool.close()

    run(story())
    image = image_of(path)
    assert (image.last_seq, image.counters) == (1, {"records": 1, "resends": 1})


def test_a_second_owner_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        first, _ = await opened(tmp_path / "s.sqlite")
        try:
            await opened(tmp_path / "s.sqlite")
        finally:
            await first.commit(SpoolCommit(batches(1, 1)))
            await first.close()

    assert "is in use by another agent: stop that one" in failure(story())
    assert image_of(tmp_path / "s.sqlite").last_seq == 1


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert "is in use by another agent" in failure(opened(path))
    finally:
        holder.kill()
        holder.communicate(timeout=WAIT_S)
    assert image_of(path).epoch == EPOCH


def files_of(folder: Path) -> dict[str, int]:
    """The files in a folder and their modes."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_the_files_are_private_even_where_the_umask_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.touch(0o644)
    before = os.umask(0)

    async def modes() -> dict[str, int]:
        spool, _ = await opened(path)
        await spool.commit(SpoolCommit(batches(1, 1)))
        found = files_of(tmp_path)
        await spool.close()
        return found

    try:
        assert run(modes()) == {"s.sqlite": 0o600, "s.sqlite-wal": 0o600}
    finally:
        os.umask(before)


@pytest.mark.parametrize(("device", "flow"), [("d2", "fleet"), ("d1", "other")])
def test_a_spool_of_another_device_or_flow_is_refused(tmp_path: Path, device: str, flow: str) -> None:
    image_of(tmp_path / "s.sqlite")
    assert "belongs to device 'd1' and flow 'fleet'" in failure(opened(tmp_path / "s.sqlite", device, flow))


def test_what_is_no_spool_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, database, later = tmp_path / "text", tmp_path / "database", tmp_path / "later"
    text.write_bytes(b"not a database, but a letter to a friend" * 100)
    for path, statement in ((database, "CREATE TABLE mine (a)"), (later, "PRAGMA user_version=5")):
        if path is later:
            image_of(path)
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.close()
    before = {path: path.read_bytes() for path in (text, database)}
    assert "is damaged (file is not a database): move it away" in failure(opened(text))
    assert "was written by another program, or by an early version of" in failure(opened(database))
    assert "has layout 5, and this version of Geartrain knows 1" in failure(opened(later))
    assert text.read_bytes() == before[text]
    assert b"mine" in database.read_bytes()


def test_damage_inside_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    async def story() -> None:
        spool, _ = await opened(path)
        await spool.commit(
            SpoolCommit(batches(1, 200), {}, {("a", b"%d" % n): b"x" * 500 for n in range(500)})
        )
        await spool.close()

    run(story())
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = b"\x55" * (len(content) - 4096 * 2)
    path.write_bytes(content)
    assert "is damaged" in failure(opened(path))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file/s.sqlite cannot be used: File exists" in failure(opened(tmp_path / "file" / "s.sqlite"))


ROOT = Path(__file__).resolve().parents[2]

HOLD = """
import asyncio, pathlib, sys
from geartrain_edge.spool.spool import SqliteSpool

async def main():
    await SqliteSpool(pathlib.Path(sys.argv[1])).open("d1", "fleet", b"epoch..8")
    print("open", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""

COMMITS = """
import asyncio, pathlib, sys
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch
from geartrain.wire.digest import next_digest
from geartrain_edge.spool.spool import SqliteSpool

async def main():
    spool = SqliteSpool(pathlib.Path(sys.argv[1]))
    image = await spool.open("d1", "fleet", b"epoch..8")
    seq, digest = image.last_seq, image.digest
    while True:
        made = []
        for number in range(3):
            seq += 1
            header, body = b"%d" % seq, b"x" * (seq % 3000)
            digest = next_digest(digest, header, body)
            made.append(SpooledBatch(seq, header, body, digest, 1))
        at = SplitProgress(seq, seq)
        await spool.commit(
            SpoolCommit(made, {("a", "x"): at}, {("a", b"k"): b"%d" % seq}, {"seq": seq})
        )
        print(seq, flush=True)
        if seq % 12 == 0:
            await spool.trim(seq - 9)

asyncio.run(main())
"""


def check_whole(path: Path, told: int) -> int:
    """All parts of the spool stand at one commit, not before the last that was told; returns its seq."""

    async def read() -> tuple[SpoolImage, list[SpooledBatch]]:
        spool, image = await opened(path)
        found = await spool.read(0, 1_000_000)
        await spool.close()
        return image, found

    image, found = run(read())
    seq = image.last_seq
    assert seq >= told
    assert seq % 3 == 0
    assert image.positions == {("a", "x"): SplitProgress(seq, seq)}
    assert image.state == {("a", b"k"): b"%d" % seq}
    assert image.counters == {"seq": seq}
    assert [batch.seq for batch in found] == list(range(image.acked_seq + 1, seq + 1))
    assert image.spooled_bytes == sum(batch.size for batch in found)
    for before, batch in pairwise(found):
        assert batch.digest == next_digest(before.digest, batch.header, batch.body)
    assert image.digest == found[-1].digest
    return int(seq)


def test_kill_9_in_mid_commit_leaves_whole_commits(tmp_path: Path) -> None:
    path, seq = tmp_path / "s.sqlite", 0
    for kills in range(1, 7):
        writer = subprocess.Popen(
            [sys.executable, "-c", COMMITS, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = seq
        try:
            for _ in range(7 * kills):
                told = int(writer.stdout.readline())
        finally:
            writer.send_signal(signal.SIGKILL)
            rest, _ = writer.communicate(timeout=WAIT_S)
        whole = [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        seq = check_whole(path, max([told, *whole]))
    assert seq > 3 * 7 * 6
