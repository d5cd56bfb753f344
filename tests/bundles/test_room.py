"""Code that a device's disk has no room for is not fetched, and one sentence says why. What is fetched of a
program has its bytecode beside it.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.adapters.files import write_private
from geartrain.errors import ConfigError, DiskError
from geartrain_cloud.certs.fleet import Fleet
from geartrain_edge.bundles.bytecode import BYTECODE
from geartrain_edge.bundles.fetch import fetch
from geartrain_edge.bundles.request import Request
from geartrain_edge.identity import Term, identity_text
from geartrain_edge.parent.config import read_device
from geartrain_edge.programs.store import ProgramStore
from tests.bundles.programs import program
from tests.bundles.trust import PlatformServer, Repository
from tests.bundles.versions import bundle

FLOOR = 50_000_000


class World:
    """A platform's server, and requests of a device that has joined."""

    def __init__(self, folder: Path, repository: Repository, server: PlatformServer, fleet: Fleet) -> None:
        self.folder, self.repository, self.server, self.fleet = folder, repository, server, fleet

    def add(self, code: str, archive: bytes) -> str:
        self.repository.add(code, archive)
        self.repository.publish()
        return code

    def request(self, code: str, programs: str = "") -> Request:
        identity = self.folder / "identity.pem"
        where = (str(self.folder / "bundles"), self.server.url, str(self.fleet.ca), str(identity))
        return Request(*where, code, programs=programs, floor_bytes=FLOOR)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    fleet = Fleet(tmp_path / "fleet")
    fleet.init("test")
    fleet.issue("server", "127.0.0.1")
    fleet.issue("device", "truck-1")
    own, files, now_s = fleet.paths("server", "127.0.0.1"), fleet.paths("device", "truck-1"), time.time()
    term = Term(now_s, now_s + 86_400)
    text = identity_text(term, files.key.read_bytes(), files.certificate.read_text())
    write_private(tmp_path / "identity.pem", text)
    repository = Repository()
    server = PlatformServer(repository, fleet.ca, own.certificate, own.key)
    yield World(tmp_path, repository, server, fleet)
    server.close()


def fetched(world: World) -> list[str]:
    return [path for path in world.repository.asked if path.startswith("bundles/")]


def test_what_there_is_no_room_for_is_not_fetched(world: World) -> None:
    code = world.add(*bundle("good"))
    with pytest.raises(DiskError) as caught:
        fetch(world.request(code), free=lambda _: FLOOR + 100)
    said = str(caught.value)
    assert said.startswith(f"bundle {code[:12]} is not fetched: it takes up to 0.0 MB on the disk of ")
    assert "which has 50.0 MB free, and 50.0 MB are to stay free (spool.free_floor): make room on it" in said
    assert fetched(world) == []
    fetch(world.request(code), free=lambda _: FLOOR + 1_000_000)
    assert (world.folder / "bundles" / code).is_dir()


def test_what_unpacks_to_more_than_there_is_room_for_leaves_nothing(world: World) -> None:
    code = world.add(*program("good"))
    room = iter([FLOOR + 100_000_000, FLOOR + 1_000_000])
    programs = world.folder / "programs"
    with pytest.raises(DiskError, match="is not fetched"):
        fetch(world.request(code, str(programs)), free=lambda _: next(room))
    assert list(programs.iterdir()) == []


def test_a_program_has_its_bytecode_and_a_damaged_one_is_noticed(world: World) -> None:
    code = world.add(*program("good"))
    programs = world.folder / "programs"
    fetch(world.request(code, str(programs)), free=lambda _: 1 << 40)
    store, folder = ProgramStore(programs), programs / code
    listed = json.loads((folder / BYTECODE).read_text())
    sources = [path for path in folder.rglob("*.py") if "geartrain_edge" in path.parts]
    for source in sources:
        cached = Path(importlib.util.cache_from_source(str(source)))
        assert cached.relative_to(folder).as_posix() in listed
        assert int.from_bytes(cached.read_bytes()[4:8], "little") == 1  # known by a hash that nobody compares
        assert str(folder).encode() in cached.read_bytes()
    assert len(sources) > 50
    assert store.is_whole(code)
    path = folder / next(iter(listed))
    path.write_bytes(path.read_bytes()[:-1])
    assert not store.is_whole(code)
    assert not folder.exists()


def test_the_floor_is_that_of_the_spools(tmp_path: Path) -> None:
    file = tmp_path / "device.toml"
    text = 'device = "d"\nstate = "state"\n'
    file.write_text(text)
    assert read_device(str(file)).free_floor_bytes == FLOOR
    file.write_text(f'{text}[spool]\nfree_floor = "2MB"\n')
    assert read_device(str(file)).free_floor_bytes == 2_000_000
    file.write_text(f"{text}[spool]\nfree_floor = 7\n")
    with pytest.raises(ConfigError, match=r"spool\.free_floor: '7' is not a size"):
        read_device(str(file))
