"""`gear-agent join` and `gear-agent renew`: short-lived processes, which end before the agent's work begins.

Guarantees: a mistake is one sentence on stderr and exit code 2. What may be otherwise in a while, such as no
network or a clock that is not set, is exit code 1. With `--from` it is tried again until it is done. The
token may come from a file or from standard input, since other users of a machine see command lines.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from geartrain.adapters.configuration import read_as
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import is_word, printable
from geartrain_edge.identity import Files, Identity
from geartrain_edge.joining.asking import Platform
from geartrain_edge.joining.errors import JoinError, NotYetError
from geartrain_edge.parent.config import read_device

try:
    from geartrain_edge.joining.join import Invitation, Place, join, renew
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "cryptography":
        raise
    sys.stderr.write(
        "gear-agent: to join a platform install the extra: pip install 'geartrain-edge[fleet]'\n"
    )
    sys.exit(2)

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_INTERRUPTED = 0, 1, 2, 130
DEVICE_FILE, STATE = Path("/etc/geartrain/device.toml"), Path("/var/lib/geartrain")
_EXAMPLES = """examples:
  gear-agent join https://hub.example:8764 TOKEN --ca-fingerprint sha256:HEX
  gear-agent join --from join-hall.toml --device hall/device.toml"""
PAUSE_S, PAUSE_S_MAX = 1.0, 60.0
TOKEN_BYTES_MAX = 512


def main(arguments: Sequence[str]) -> int:
    """Run `join` or `renew`; returns the exit code."""
    os.umask(0o077)
    try:
        if arguments[:1] == ["renew"]:
            _renew(arguments[1:])
        else:
            _join(arguments[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except GeartrainError as error:
        _say(str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED
    return EXIT_OK


def _join(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="gear-agent join",
        description="Join a platform, once. gear device add prints the line for it, or makes its file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="the platform, https://HOST:PORT")
    parser.add_argument("token", nargs="?", metavar="TOKEN", help="the one-time token")
    parser.add_argument("--ca-fingerprint", metavar="sha256:HEX", help="of the platform's authority")
    parser.add_argument("--token-file", metavar="FILE", help="holds the token; - for standard input")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE.toml", help="holds all of these")
    parser.add_argument(
        "--device",
        type=Path,
        default=DEVICE_FILE,
        metavar="FILE.toml",
        help="the file to make; default %(default)s",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help=f"where the device keeps what it has; default {STATE}, "
        "or with --device a folder state beside it",
    )
    found = parser.parse_args(arguments)
    state = found.state or (
        STATE if found.device == DEVICE_FILE else found.device.absolute().parent / "state"
    )
    place = Place(found.device.absolute(), state.absolute(), found.source)
    files = Files(place.state)
    if found.source is None:
        invitation = _invitation(found)
        device = join(place, invitation, Platform(invitation.url), files)
    else:
        if any((found.url, found.token, found.ca_fingerprint, found.token_file)):
            raise JoinError("--from holds address, token and fingerprint: give nothing besides")
        invitation = read_as(found.source, Invitation)
        platform = Platform(invitation.url)
        device = _until_done(lambda: join(place, invitation, platform, files))
    files.give(Identity(place.state).file.parent, place.device)
    sys.stdout.write(f"joined as {device}: gear-agent --device {place.device} runs what the platform wants\n")


def _invitation(found: argparse.Namespace) -> Invitation:
    if not found.url or not found.ca_fingerprint or bool(found.token) == bool(found.token_file):
        raise JoinError(
            "write gear-agent join URL TOKEN --ca-fingerprint sha256:..., as gear device add prints it, or "
            "--token-file FILE in the place of TOKEN"
        )
    return Invitation(found.url, found.token or _token(found.token_file), found.ca_fingerprint)


def _token(file: str) -> str:
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
            text = source.read(TOKEN_BYTES_MAX).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise JoinError(f"--token-file {file} cannot be read: {error.strerror or error}") from None
    if not text:
        raise JoinError(f"--token-file {file} is empty: it holds the token")
    if not is_word(text):
        raise JoinError(f"--token-file {file} must hold one word, the token that gear device token prints")
    return text


def _until_done(attempt: Callable[[], str]) -> str:
    """Try until it is done, or refused; each reason is said once."""
    pause_s, said = PAUSE_S, ""
    while True:
        try:
            return attempt()
        except NotYetError as error:
            if str(error) != said:
                said = str(error)
                _say(f"{said}; trying again")
        time.sleep(random.uniform(pause_s / 2, pause_s))  # noqa: S311 - so that a fleet does not come at once
        pause_s = min(pause_s * 2, PAUSE_S_MAX)


def _renew(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="gear-agent renew", description="Renew a device's certificate.")
    parser.add_argument("--device", default=str(DEVICE_FILE), metavar="FILE.toml", help="the device's file")
    config = read_device(parser.parse_args(arguments).device)
    if not config.platform:
        raise JoinError(f"{config.path}: platform is missing: the device has joined none")
    identity = Identity(config.state)
    term = renew(config.device, identity, Platform(config.platform), Files(config.state))
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(term.expires_s))
    sys.stdout.write(f"the certificate of {config.device} is good until {until} UTC\n")


def _say(sentence: str) -> None:
    sys.stderr.write(f"gear-agent: {printable(' '.join(sentence.split()))}\n")
    sys.stderr.flush()
