"""What a device is told beside its platform: hostname, time server, wireless network, address.

Guarantees: each value is checked before anything is written, so that none can end a line, a quote or a file.
The wireless key is stored, never the password that it is derived from.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from dataclasses import dataclass

from geartrain.errors import MistakeError

_HOSTNAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SERVER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
_COUNTRY = re.compile(r"[A-Z]{2}")
_PSK_ROUNDS = 4096  # of WPA2, IEEE 802.11i


@dataclass(frozen=True, slots=True)
class Wifi:
    """A wireless network (WPA2). key: 64 hexadecimal digits; country: by whose rules it may send."""

    ssid: str
    key: str
    country: str

    @staticmethod
    def of(ssid: str, password: str, country: str) -> Wifi:
        """The network of a name, its password of 8 to 63 characters and a country; raises `MistakeError`."""
        raw = ssid.encode()
        if not 1 <= len(raw) <= 32 or not ssid.isprintable():
            raise MistakeError("--wifi: the name of a network has 1 to 32 bytes, all printable")
        if not 8 <= len(password) <= 63 or not password.isascii() or not password.isprintable():
            raise MistakeError(
                "--wifi: the password of a WPA2 network has 8 to 63 printable ASCII characters"
            )
        if not _COUNTRY.fullmatch(country):
            raise MistakeError(
                f"--country {country!r}: write the two capital letters of a country, such as DE"
            )
        key = hashlib.pbkdf2_hmac("sha1", password.encode(), raw, _PSK_ROUNDS, 32).hex()
        return Wifi(ssid, key, country)


@dataclass(frozen=True, slots=True)
class Address:
    """A fixed address. address: with the length of its network, such as `10.0.0.5/24`; gateway: may be ""."""

    address: str
    gateway: str
    servers: tuple[str, ...]

    @staticmethod
    def of(address: str, gateway: str, servers: tuple[str, ...]) -> Address:
        """The address of three options; raises `MistakeError`."""
        try:
            own = ipaddress.ip_interface(address)
            for one in (gateway, *servers):
                if one:
                    ipaddress.ip_address(one)
        except ValueError as error:
            raise MistakeError(f"--address: {error}: write such as 10.0.0.5/24") from None
        if "/" not in address or own.network.num_addresses < 2:
            raise MistakeError(f"--address {address}: say how long its network is, such as {own.ip}/24")
        if gateway and ipaddress.ip_address(gateway) not in own.network:
            raise MistakeError(f"--gateway {gateway} is not in the network of {address}")
        return Address(str(own), gateway, servers)


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What was asked for; what was not is left as the device has it."""

    hostname: str = ""
    ntp: tuple[str, ...] = ()
    wifi: Wifi | None = None
    address: Address | None = None

    def __post_init__(self) -> None:
        if self.hostname and not _HOSTNAME.fullmatch(self.hostname):
            raise MistakeError(f"--hostname {self.hostname!r}: use a to z, 0 to 9 and -, at most 63 of them")
        for server in self.ntp:
            if not _SERVER.fullmatch(server):
                raise MistakeError(f"--ntp {server!r}: write the name or the address of a server")

    def files(self) -> dict[str, bytes]:
        """The files that `install.sh` puts into their places, by name; no file for what is not asked for."""
        found: dict[str, str] = {}
        if self.hostname:
            found["hostname"] = f"{self.hostname}\n"
        if self.ntp:
            found["timesyncd.conf"] = f"[Time]\nNTP={' '.join(self.ntp)}\n"
        if self.wifi is not None or self.address is not None:
            found["netplan.yaml"] = self.netplan()
            found["geartrain.nmconnection"] = self._network_manager()
            found["geartrain.network"] = self._networkd()
        if self.wifi is not None:
            found["country"] = f"{self.wifi.country}\n"
            found["wpa_supplicant.conf"] = (
                f"country={self.wifi.country}\nctrl_interface=/run/wpa_supplicant\n"
                f"network={{\n  ssid={self.wifi.ssid.encode().hex()}\n  psk={self.wifi.key}\n}}\n"
            )
        return {name: text.encode() for name, text in found.items()}

    def netplan(self) -> str:
        """The network as netplan and cloud-init read it: YAML, of which JSON is a part."""
        link: dict[str, object] = {"optional": True}
        if self.address is None:
            link["dhcp4"] = True
        else:
            link["addresses"] = [self.address.address]
            if self.address.gateway:
                default = "::/0" if ":" in self.address.gateway else "0.0.0.0/0"
                link["routes"] = [{"to": default, "via": self.address.gateway}]
            if self.address.servers:
                link["nameservers"] = {"addresses": list(self.address.servers)}
        network: dict[str, object] = {"version": 2}
        if self.wifi is None:
            network["ethernets"] = {"geartrain": {"match": {"name": "e*"}, **link}}
        else:
            points = {self.wifi.ssid: {"password": self.wifi.key}}
            country = {"regulatory-domain": self.wifi.country}
            network["wifis"] = {"wlan0": {**link, **country, "access-points": points}}
        return json.dumps({"network": network}, indent=1) + "\n"

    def _network_manager(self) -> str:
        lines = ["[connection]", "id=geartrain", f"type={'wifi' if self.wifi else 'ethernet'}"]
        if self.wifi is not None:
            ssid = "".join(f"{byte};" for byte in self.wifi.ssid.encode())
            lines += ["[wifi]", "mode=infrastructure", f"ssid={ssid}"]
            lines += ["[wifi-security]", "key-mgmt=wpa-psk", f"psk={self.wifi.key}"]
        own = self.address
        for family, is_own in (
            ("ipv4", own and ":" not in own.address),
            ("ipv6", own and ":" in own.address),
        ):
            lines.append(f"[{family}]")
            if own is None or not is_own:
                lines.append("method=auto")
                continue
            lines += ["method=manual", f"address1={own.address}" + (f",{own.gateway}" if own.gateway else "")]
            servers = [one for one in own.servers if (":" in one) == (family == "ipv6")]
            lines += [f"dns={';'.join(servers)};"] if servers else []
        return "\n".join(lines) + "\n"

    def _networkd(self) -> str:
        lines = ["[Match]", f"Type={'wlan' if self.wifi else 'ether'}", "[Network]"]
        if self.address is None:
            lines.append("DHCP=yes")
        else:
            lines.append(f"Address={self.address.address}")
            lines += [f"Gateway={self.address.gateway}"] if self.address.gateway else []
            lines += [f"DNS={server}" for server in self.address.servers]
        return "\n".join(lines) + "\n"
