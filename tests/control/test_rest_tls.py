"""REST over TLS: a real control process, its certificate and renewal, and clients with its authority."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from geartrain_client.errors import UnreachableError
from geartrain_client.rest.door import find_door
from geartrain_client.rest.platform import Platform
from geartrain_cloud.certs import SERVER, Fleet
from tests.control.platform_client import control_process
from tests.ports import free_port
from tests.waiting import WAIT_S, Wait


def shown(url: str) -> bytes:
    """The certificate that is shown there, unchecked."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=WAIT_S).encode()


def spoken(port: int, version: ssl.TLSVersion) -> str | None:
    """What the server agrees to speak with a client that speaks this version of TLS alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("localhost", port), 60) as raw, context.wrap_socket(raw) as wrapped:
        return wrapped.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_rest_shows_the_certificate_of_the_fleets_address_and_its_renewal(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir(mode=0o700)
    elsewhere.mkdir()
    (state / "platform.toml").write_text(
        f'[control]\nhost = "0.0.0.0"\nport = {free_port()}\ntls = true\n'
        f'[fleet]\naddress = "localhost"\ndevice_port = {free_port()}\n'
    )
    with control_process(state):
        here = find_door(None, state, {})
        assert here.url.startswith("https://localhost:")
        assert Platform(here).get("/status")["url"] == here.url
        fleet = Fleet(state / "fleet")
        assert here.ca == str(fleet.ca)
        # What another machine has: the address, the authority and a token.
        shutil.copy(fleet.ca, elsewhere / "ca.pem")
        shutil.copy(state / "control.token", elsewhere / "token")
        told = {"GEARTRAIN_URL": here.url, "GEARTRAIN_TOKEN_FILE": str(elsewhere / "token")}
        with pytest.raises(UnreachableError, match="name the file of its authority with GEARTRAIN_CA"):
            Platform(find_door(environment=told), attempts=1).get("/status")
        there = Platform(find_door(environment=told | {"GEARTRAIN_CA": str(elsewhere / "ca.pem")}))
        assert there.get("/status")["url"] == here.url
        assert spoken(here.port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        with pytest.raises(OSError, match=r"EOF|ALERT_PROTOCOL_VERSION|reset"):
            spoken(here.port, ssl.TLSVersion.TLSv1_1)
        paths = fleet.paths(SERVER, "localhost")
        assert paths.key.stat().st_mode & 0o077 == 0
        former = shown(here.url)
        fleet.issue(SERVER, "localhost", ["127.0.0.1"], renew=True)
        assert shown(here.url).strip() == paths.certificate.read_bytes().strip()
        assert shown(here.url) != former
        assert there.get("/status")["url"] == here.url


def test_rest_shows_a_certificate_of_the_operators_own(tmp_path: Path) -> None:
    state, own = tmp_path / "state", Fleet(tmp_path / "own")
    state.mkdir(mode=0o700)
    own.init("operator")
    own.issue(SERVER, "localhost", ["127.0.0.1"])
    paths = own.paths(SERVER, "localhost")
    (state / "platform.toml").write_text(
        f'[control]\nhost = "127.0.0.1"\nport = {free_port()}\ntls = true\naddress = "localhost"\n'
        f'certificate = "{paths.certificate}"\nkey = "../own/server/localhost.key"\n'
    )
    paths.key.chmod(0o644)
    command = [sys.executable, "-m", "geartrain_cloud.control.main", "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "control.key: " in done.stderr
    assert "can be read by others (mode 0644): run chmod 600" in done.stderr
    paths.key.chmod(0o600)
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status, wait = None, Wait("control to answer")
            while status is None:
                assert process.poll() is None, "control has ended"
                wait.check()
                with suppress(UnreachableError):
                    status = Platform(find_door(None, state, {"GEARTRAIN_CA": str(own.ca)})).get("/status")
            assert status["url"].startswith("https://localhost:")
            with pytest.raises(UnreachableError, match="not trusted here"):
                Platform(find_door(None, state, {}), attempts=1).get("/status")
        finally:
            process.terminate()
