"""mosquitto for a fleet: its configuration and access list, with what its machine needs in one folder.

It stands between devices and ingest. Guarantees: whoever has no certificate of the fleet's authority, or a
revoked one, is refused. The name in a certificate is the user, and a user sends and receives on its own
topics only.

mosquitto 2.0 grants any subscription, and checks each publish before it delivers it. So a device that
subscribes to the topics of others gets a yes, but no messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.configuration import host_and_port
from geartrain.adapters.files import write_private
from geartrain.errors import ConfigError
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import ROOT, reported_filter, told_filter, up_filter
from geartrain_cloud.broker.choice import PACKET_OVERHEAD_BYTES, QUEUED_BATCHES_MAX, QUEUED_BYTES_MAX
from geartrain_cloud.certs import CLOUD, SERVER, Fleet
from geartrain_cloud.certs.names import common_name
from geartrain_cloud.errors import CertificateError

INFLIGHT_MAX = 20
KEEPALIVE_S_MAX = 300


@dataclass(frozen=True, slots=True)
class BrokerHost:
    """listen: `PORT`, on all interfaces, or `HOST:PORT`; server: whose certificate it shows; user: whom
    mosquitto becomes when root starts it; folder: where it finds its files.
    """

    server: str
    listen: str
    folder: Path
    user: str = "mosquitto"


def write_broker(fleet: Fleet, host: BrokerHost, output: Path) -> list[Path]:
    """Write all that the broker's machine needs into `output`; returns the files.

    Raises `ConfigError`, and `CertificateError` where the fleet lacks something.
    """
    listener = _listener(host.listen)
    if not host.user or not host.user.isascii() or not host.user.isprintable() or " " in host.user:
        raise ConfigError(f"--user {host.user!r}: give the name of a user of the broker's machine")
    if any(not c.isprintable() for c in str(host.folder)):
        raise ConfigError(
            f"{host.folder!s:.200} cannot stand in mosquitto's configuration: use another folder"
        )
    paths = fleet.paths(SERVER, host.server)
    sources = {
        "ca.pem": fleet.ca,
        "crl.pem": fleet.crl,
        "server.pem": paths.certificate,
        "server.key": paths.key,
    }
    files: dict[str, str | bytes] = {}
    for name, source in sources.items():
        try:
            files[name] = source.read_bytes()
        except OSError as error:
            raise CertificateError(
                f"{source} cannot be read ({error.strerror}): run gear certs init, and "
                f"gear certs issue server {host.server}"
            ) from None
    files["acl"] = access_list()
    files["mosquitto.conf"] = configuration(listener, host.folder, host.user)
    written = []
    for name, content in files.items():
        try:
            write_private(output / name, content)
        except OSError as error:
            raise ConfigError(f"{output / name} cannot be written: {error.strerror or error}") from None
        written.append(output / name)
    return written


def configuration(listener: str, folder: Path, user: str) -> str:
    """mosquitto's configuration; `listener`: its port, and its address if not all.

    Nothing is kept: spools and the outbox are what survives. A packet that is larger than any of ours ends
    the connection, and what is retained or queued for the absent cannot fill the memory.
    """
    return f"""\
user {user}
listener {listener}
cafile {folder}/ca.pem
certfile {folder}/server.pem
keyfile {folder}/server.key
crlfile {folder}/crl.pem
tls_version tlsv1.2
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file {folder}/acl
persistence false
set_tcp_nodelay true
retain_available false
persistent_client_expiration 1h
sys_interval 0
max_keepalive {KEEPALIVE_S_MAX}
max_inflight_messages {INFLIGHT_MAX}
max_queued_messages {QUEUED_BATCHES_MAX}
max_queued_bytes {QUEUED_BYTES_MAX}
max_packet_size {LIMITS.payload_bytes_max + PACKET_OVERHEAD_BYTES}
set_tcp_nodelay true
connection_messages true
log_dest stderr
log_timestamp_format %Y-%m-%dT%H:%M:%S
log_type error
log_type warning
log_type notice
"""


def access_list() -> str:
    """mosquitto's access list: a device under its own name, ingest and the sender on what they serve."""
    own = f"{ROOT}/+/%u"
    return f"""\
# A device: what it sends and is answered, what is sent to it and it answers, questions, and its control lane.
# %u is its certificate's name.
pattern write {own}/+/up
pattern read {own}/+/ack
pattern read {own}/+/down
pattern write {own}/+/downack
pattern read {own}/+/ask
pattern write {own}/+/told
pattern read {own}/desired
pattern write {own}/reported

user {common_name(CLOUD, "ingest")}
topic read {up_filter()}
topic write {ROOT}/+/+/+/ack

user {common_name(CLOUD, "down")}
topic read {ROOT}/+/+/+/downack
topic write {ROOT}/+/+/+/down

user {common_name(CLOUD, "control")}
topic read {reported_filter()}
topic write {ROOT}/+/+/desired
topic read {told_filter()}
topic write {ROOT}/+/+/+/ask
"""


def _listener(listen: str) -> str:
    if listen.isascii() and listen.isdecimal() and 0 < int(listen) < 65_536:
        return listen
    try:
        host, port = host_and_port(listen)
    except ConfigError:
        raise ConfigError(f"--listen {listen!r}: write PORT or HOST:PORT, such as 8883") from None
    if not all(c.isalnum() or c in ".:-" for c in host):
        raise ConfigError(f"--listen {listen!r}: {host!r} is not a host's name or address")
    return f"{port} {host}"
