"""A PostgreSQL of its own for the tests that need one: started once, on a socket in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import find_initdb
from tests.waiting import WAIT_S


@dataclass
class Postgres:
    """A server that tests may stop, kill and start again."""

    programs: Path
    folder: Path
    user: str | None

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user=geartrain dbname=postgres"

    def _call(self, *command: str) -> None:
        subprocess.run(
            [self.programs / command[0], *command[1:]],
            check=True, user=self.user, cwd=self.folder, stdout=subprocess.DEVNULL, env={"LC_ALL": "C"},
            timeout=WAIT_S,
        )  # fmt: skip

    def create(self) -> None:
        self._call("initdb", "-D", f"{self.folder}/data", "-U", "geartrain", "-A", "trust", "-E", "UTF8")

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c max_prepared_transactions=0"
        self._call(
            "pg_ctl", "-D", f"{self.folder}/data", "-w", "-l", f"{self.folder}/log", "-o", options, "start"
        )

    def database(self, name: str) -> str:
        """How to reach an empty database of this name; one that was there is dropped."""
        import psycopg  # which few tests need

        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            db.execute(f"CREATE DATABASE {name}")
        return self.dsn.replace("dbname=postgres", f"dbname={name}")

    def asks(self, user: str, password: str) -> str:
        """How to reach a user who is let in by SCRAM and this password alone, without the password."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.dsn, autocommit=True) as db:
            name, value = sql.Identifier(user), sql.Literal(password)
            there = db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (user,)).fetchone()
            verb = sql.SQL("ALTER" if there else "CREATE")
            db.execute("SET password_encryption = 'scram-sha-256'")
            db.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, name, value))
            rules = self.folder / "data" / "pg_hba.conf"
            rule = f"local all {user} scram-sha-256\n"
            if rule not in (held := rules.read_text()):
                rules.write_text(rule + held)
            db.execute("SELECT pg_reload_conf()")
        return self.dsn.replace("user=geartrain", f"user={user}")

    def stop(self, mode: str = "fast") -> None:
        self._call("pg_ctl", "-D", f"{self.folder}/data", "-w", "-m", mode, "stop")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """One that is started with the block and removed with it."""
    initdb = find_initdb()
    assert initdb is not None, "PostgreSQL is not installed: apt-get install postgresql"
    folder = Path(tempfile.mkdtemp(prefix="geartrain-pg-"))  # short, because a socket's name must be
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = "postgres" if any(p.pw_name == "postgres" for p in pwd.getpwall()) else "nobody"
        shutil.chown(folder, user)
    server = Postgres(Path(initdb).parent, folder, user)
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder)
