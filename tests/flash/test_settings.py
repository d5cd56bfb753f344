"""What a device is told of its network reaches each kind of system, and cannot break out of a file."""

from __future__ import annotations

import configparser
import json

import pytest

from geartrain.errors import MistakeError
from geartrain_client.flash.settings import Address, DeviceSettings, Wifi


def test_the_wireless_key_is_that_of_the_standard() -> None:
    # IEEE 802.11i, annex H.4: the test vectors of the passphrase's mapping.
    assert Wifi.of("IEEE", "password", "DE").key == (
        "f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e"
    )


def test_no_file_holds_the_password() -> None:
    settings = DeviceSettings("pi", ("pool.example",), Wifi.of("shed", "correct horse", "DE"))
    files = settings.files()
    assert set(files) == {
        "country",
        "hostname",
        "timesyncd.conf",
        "netplan.yaml",
        "geartrain.nmconnection",
        "geartrain.network",
        "wpa_supplicant.conf",
    }
    assert not any(b"correct horse" in content for content in files.values())
    assert files["timesyncd.conf"] == b"[Time]\nNTP=pool.example\n"


def test_one_address_is_told_to_each_kind_of_system() -> None:
    settings = DeviceSettings(address=Address.of("10.0.0.5/24", "10.0.0.1", ("10.0.0.2", "10.0.0.3")))
    files = {name: content.decode() for name, content in settings.files().items()}
    link = json.loads(files["netplan.yaml"])["network"]["ethernets"]["geartrain"]
    assert link["addresses"] == ["10.0.0.5/24"]
    assert link["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.0.1"}]
    manager = configparser.ConfigParser()
    manager.read_string(files["geartrain.nmconnection"])
    assert manager["ipv4"]["address1"] == "10.0.0.5/24,10.0.0.1"
    assert (manager["ipv4"]["dns"], manager["ipv6"]["method"]) == ("10.0.0.2;10.0.0.3;", "auto")
    assert "Address=10.0.0.5/24\nGateway=10.0.0.1\nDNS=10.0.0.2\nDNS=10.0.0.3\n" in files["geartrain.network"]


def test_names_that_could_end_a_line_or_a_quote_are_refused_or_kept_as_data() -> None:
    odd = DeviceSettings(wifi=Wifi.of('a"b}\\', "12345678", "DE")).files()
    assert json.loads(odd["netplan.yaml"])["network"]["wifis"]["wlan0"]["access-points"].keys() == {'a"b}\\'}
    assert b"ssid=6122627d5c\n" in odd["wpa_supplicant.conf"]
    assert b"ssid=97;34;98;125;92;\n" in odd["geartrain.nmconnection"]
    for wrong in (
        lambda: Wifi.of("a\nb", "12345678", "DE"),
        lambda: Wifi.of("a", "short", "DE"),
        lambda: Wifi.of("a", "12345678", "de"),
        lambda: Wifi.of("x" * 33, "12345678", "DE"),
        lambda: DeviceSettings(hostname="a\nb"),
        lambda: DeviceSettings(hostname="-a"),
        lambda: DeviceSettings(ntp=("a b",)),
        lambda: Address.of("10.0.0.5", "", ()),
        lambda: Address.of("10.0.0.5/24", "10.0.1.1", ()),
        lambda: Address.of("10.0.0.5/24", "", ("x",)),
    ):
        with pytest.raises(MistakeError, match="--"):
            wrong()
