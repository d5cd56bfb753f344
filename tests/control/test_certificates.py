"""The authority of a platform by REST: keys stay where they are made, and each change is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from geartrain_client.cli import main
from geartrain_cloud.certs import DEVICE, Fleet
from geartrain_cloud.certs.asking import asked
from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import Client, control_process
from tests.waiting import WAIT_S

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def client(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        yield one


@pytest.fixture
def gear(client: Client, state: Path, capsys: Capture) -> Any:
    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        got = main([*arguments, "--state", str(state)])
        said = capsys.readouterr()
        assert got == code, said.err
        return said.out if code == 0 else said.err

    return run


def test_an_authority_is_made_once_and_signs_for_keys_that_stay(
    gear: Any, client: Client, state: Path, tmp_path: Path
) -> None:
    folder, places = tmp_path / "here", PlatformPlaces(state)
    assert "has no authority" in gear("certs", "issue", "device", "d1", "--certs", str(folder), code=2)
    made = json.loads(gear("certs", "init", "--fleet", "pumps", "--json"))
    assert made["fingerprint"] == Fleet(places.fleet).fingerprint()
    assert "never replaced" in gear("certs", "init", code=2)

    own = ("--certs", str(folder))
    gear("certs", "issue", "device", "d1", *own)  # with the key that the refused one has left
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    first = x509.load_pem_x509_certificate((folder / "device" / "d1.pem").read_bytes())
    first.verify_directly_issued_by(ca)
    key = (folder / "device" / "d1.key").read_text()
    assert (folder / "device" / "d1.key").stat().st_mode & 0o077 == 0
    for path in state.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()
    assert "never overwritten" in gear("certs", "issue", "device", "d1", *own, code=2)
    gear("certs", "issue", "device", "d1", "--renew", *own)
    again = x509.load_pem_x509_certificate((folder / "device" / "d1.pem").read_bytes())
    assert again.public_key() == first.public_key()
    assert again.serial_number != first.serial_number

    said = gear("certs", "issue", "server", "broker.example", "--host", "10.0.0.5", "--json", *own)
    server = x509.load_pem_x509_certificate(Path(json.loads(said)["certificate"]).read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example"]
    gear("certs", "issue", "cloud", "ingest", *own)

    listed = json.loads(gear("certs", "ls", "--json"))
    assert [(one["kind"], one["name"]) for one in listed] == [
        ("device", "d1"),
        ("device", "d1"),
        ("server", "broker.example"),
        ("cloud", "ingest"),
    ]
    gear("certs", "revoke", "device", "d1")
    told = [one for one in _events(client) if one["kind"] == "certificate"]
    assert [one["said"]["what"] for one in told] == ["authority", *["issued"] * 4, "revoked"]
    assert told[-1]["device"] == "d1"


def _events(client: Client) -> list[Any]:
    """All that there are: the stream is read until its heartbeat."""
    import http.client
    from urllib.parse import urlsplit

    where = urlsplit(client.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=WAIT_S)
    connection.request("GET", "/api/v1/events?after=0", headers={"Authorization": f"Bearer {client.token}"})
    answer, found = connection.getresponse(), list[Any]()
    while True:
        line = answer.readline()
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:]))
        if found and found[-1]["kind"] == "certificate" and found[-1]["said"]["what"] == "revoked":
            connection.close()
            return found


@pytest.mark.parametrize(
    ("kind", "name", "body", "said"),
    [
        ("device", "d2", {"request": "x"}, "signing request cannot be read"),
        ("thing", "d2", {}, "'thing' is not what a certificate is for"),
        ("cloud", "kitchen", {}, "the cloud has no part 'kitchen'"),
        ("device", "d2", {"hosts": ["a"]}, "has no hosts"),
        ("server", "b.example", {"hosts": ["not a host"]}, "is not the name or address of a host"),
        ("device", "d2", {"days": 0}, "days"),
        ("device", "d2", {"days": True}, "days"),
        ("device", "d2", {"request": 5}, "request"),
        ("device", "d2", {"key": "mine"}, "unknown field"),
    ],
)
def test_a_request_that_cannot_be_signed_is_refused_in_a_sentence(
    client: Client, tmp_path: Path, kind: str, name: str, body: dict[str, Any], said: str
) -> None:
    client.ask("POST", "/certs/authority", {})  # made, or there already
    whole = {"request": asked(tmp_path, DEVICE, "x", renew=False).request, **body}
    status, _, sentence = client.refusal("POST", f"/certs/{kind}/{name}/issue", whole)
    assert (status, said in sentence) == (400, True), sentence


def test_a_folder_of_another_authority_is_left_alone(gear: Any, client: Client, tmp_path: Path) -> None:
    client.ask("POST", "/certs/authority", {})
    other = Fleet(tmp_path)
    other.init("other")
    before = other.ca.read_bytes()
    said = gear("certs", "issue", "device", "d7", "--certs", str(tmp_path), code=2)
    assert "is another authority than the platform's" in said
    assert other.ca.read_bytes() == before
