"""The certificates of a fleet and the key `broker`: nothing is overwritten, and mistakes are one sentence."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from geartrain.adapters.tls import broker_of, parse_broker
from geartrain.errors import ConfigError
from geartrain_client.cli import main
from geartrain_cloud.certs import CLOUD, DEVICE, SERVER, Fleet
from geartrain_cloud.errors import CertificateError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path / "certs")
    made.init("fleet")
    return made


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


def test_names_purposes_and_ends(fleet: Fleet) -> None:
    for kind, name in ((DEVICE, "pump-7"), (CLOUD, "ingest"), (SERVER, "broker.example")):
        fleet.issue(kind, name, ["10.0.0.5"] if kind == SERVER else [])
    ca = read(fleet.ca)
    found = {
        kind: read(fleet.paths(kind, name).certificate)
        for kind, name in ((DEVICE, "pump-7"), (CLOUD, "ingest"), (SERVER, "broker.example"))
    }
    names = {k: c.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value for k, c in found.items()}
    assert names == {DEVICE: "pump-7", CLOUD: "cloud:ingest", SERVER: "geartrain broker"}
    hosts = found[SERVER].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["broker.example"]
    assert [str(one) for one in hosts.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]
    for kind, certificate in found.items():
        certificate.verify_directly_issued_by(ca)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        wanted = ExtendedKeyUsageOID.SERVER_AUTH if kind == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
        assert list(usage) == [wanted]
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert certificate.not_valid_after_utc <= ca.not_valid_after_utc
    assert modes(fleet.folder) == {0o600}


def test_a_key_is_never_overwritten(fleet: Fleet) -> None:
    fleet.issue(DEVICE, "d1")
    kept = {path: path.read_bytes() for path in (fleet.ca_key, fleet.ca, fleet.paths(DEVICE, "d1").key)}
    with pytest.raises(CertificateError, match="never replaced"):
        fleet.init("again")
    with pytest.raises(CertificateError, match="never overwritten"):
        fleet.issue(DEVICE, "d1")
    before = read(fleet.paths(DEVICE, "d1").certificate).serial_number
    fleet.issue(DEVICE, "d1", renew=True)
    assert read(fleet.paths(DEVICE, "d1").certificate).serial_number != before
    assert {path: path.read_bytes() for path in kept} == kept
    with pytest.raises(CertificateError, match="leave --renew out"):
        fleet.issue(DEVICE, "d2", renew=True)


def test_an_interrupted_init_is_finished_with_its_key(fleet: Fleet) -> None:
    key = fleet.ca_key.read_bytes()
    fleet.ca.unlink()
    fleet.crl.unlink()
    fleet.init("fleet")
    assert fleet.ca_key.read_bytes() == key
    assert fleet.crl.exists()


def test_all_certificates_of_a_name_are_revoked_and_stay_so(fleet: Fleet) -> None:
    serials = {int(fleet.issue(DEVICE, "d1", renew=n > 0).serial, 16) for n in range(3)}
    fleet.issue(DEVICE, "d2")
    key = fleet.paths(DEVICE, "d1").key.read_bytes()
    assert len(fleet.revoke(DEVICE, "d1")) == 3
    assert fleet.revoke(DEVICE, "d1") == []
    fleet.issue(DEVICE, "d1")
    fleet.revoke(DEVICE, "d2")
    crl = x509.load_pem_x509_crl(fleet.crl.read_bytes())
    assert serials < {one.serial_number for one in crl}
    assert len(list(crl)) == 4
    assert crl.is_signature_valid(read(fleet.ca).public_key())  # type: ignore[arg-type]
    assert crl.next_update_utc is not None
    assert crl.next_update_utc > datetime.now(UTC) + timedelta(days=3_000)
    assert fleet.paths(DEVICE, "d1").key.read_bytes() != key


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        (DEVICE, "a/b", "use a name of"),
        (DEVICE, "+", "use a name of"),
        (DEVICE, "cloud:ingest", "use a name of"),
        (DEVICE, "..", "cannot be called"),
        (DEVICE, "x" * 65, "use a name of"),
        (SERVER, "-broker", "is not the name or address of a host"),
        (SERVER, "../x", "is not the name or address of a host"),
        (CLOUD, "pages", "the cloud has no part 'pages'"),
        ("root", "x", "is not what a certificate is for"),
    ],
)
def test_a_name_that_could_mean_another_is_refused(fleet: Fleet, kind: str, name: str, sentence: str) -> None:
    with pytest.raises(CertificateError, match=sentence):
        fleet.issue(kind, name)
    assert fleet.issued() == []


def gear(arguments: Sequence[str], capsys: Capture) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_commands_in_order_and_their_json(tmp_path: Path, capsys: Capture) -> None:
    certs, output = str(tmp_path / "c"), tmp_path / "broker"
    code, _, err = gear(["certs", "issue", "device", "d1", "--certs", certs], capsys)
    assert (code, err) == (2, f"gear: there is no authority in {certs}: run gear certs init first\n")
    assert gear(["certs", "init", "--certs", certs], capsys)[0] == 0
    code, _, err = gear(["broker", "config", "b.example", "--certs", certs, "--output", str(output)], capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "gear certs issue server b.example" in err
    assert gear(["certs", "issue", "server", "b.example", "--certs", certs], capsys)[0] == 0
    code, out, _ = gear(["certs", "issue", "device", "d1", "--certs", certs, "--json"], capsys)
    made = json.loads(out)
    assert (code, made["name"], made["revoked_at"]) == (0, "d1", None)
    assert "PRIVATE KEY" not in out
    code, out, _ = gear(
        ["broker", "config", "b.example", "--certs", certs, "--output", str(output), "--json"], capsys
    )
    assert (code, json.loads(out)["folder"]) == (0, str(output))
    assert modes(output) == {0o600}
    assert not (output / "ca.key").exists()
    code, out, _ = gear(["certs", "revoke", "device", "d1", "--certs", certs, "--json"], capsys)
    assert [one["serial"] for one in json.loads(out)["revoked"]] == [made["serial"]]
    code, out, _ = gear(["certs", "ls", "--certs", certs, "--json"], capsys)
    assert [(one["name"], one["revoked_at"] is None) for one in json.loads(out)] == [
        ("b.example", True),
        ("d1", False),
    ]


def test_a_broker_without_tls_is_an_address() -> None:
    assert broker_of("h:1883", Path()).tls_context is None
    assert parse_broker({"address": "h:1"}, Path()).port == 1


def test_wrong_keys_of_the_table_are_one_sentence(fleet: Fleet, tmp_path: Path) -> None:
    fleet.issue(DEVICE, "d1")
    fleet.issue(DEVICE, "d2")
    one, two = fleet.paths(DEVICE, "d1"), fleet.paths(DEVICE, "d2")
    good = {"address": "h:8883", "tls": True, "ca": str(fleet.ca)}
    mine = good | {"certificate": str(one.certificate), "key": str(one.key)}
    assert parse_broker(mine, Path()).tls_context is not None
    open_key = tmp_path / "open.key"
    open_key.write_bytes(one.key.read_bytes())
    open_key.chmod(0o640)
    empty = tmp_path / "empty.pem"
    empty.touch(0o600)
    wrong: list[tuple[dict[str, object], str]] = [
        (
            mine | {"key": str(open_key)},
            f"broker.key: {open_key} can be read by others (mode 0640): run chmod 600",
        ),
        (mine | {"key": str(two.key)}, "does not fit broker.key"),
        (mine | {"key": str(tmp_path / "no")}, f"broker.key: {tmp_path / 'no'} cannot be read: No such file"),
        (mine | {"certificate": str(empty)}, f"broker.certificate: {empty} is not usable PEM"),
        (mine | {"ca": str(empty)}, f"broker.ca: {empty} is not usable PEM"),
        (mine | {"key": ""}, "belong together"),
        (mine | {"tls": False}, "broker.ca is for TLS: write tls = true beside it"),
        (mine | {"address": "h"}, "broker.address: 'h' is not HOST:PORT"),
        (mine | {"insecure": True}, "broker.insecure is not a key of this file"),
        (mine | {"tls": "yes"}, "broker.tls: expected `bool`"),
    ]
    for table, sentence in wrong:
        with pytest.raises(ConfigError) as caught:
            parse_broker(table, Path())
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)
