"""Where the platform is, and the token for it.

Before every request. The address is `--url`, else GEARTRAIN_URL, else that in `platform.json` of the state
folder. The state folder is `--state`, else GEARTRAIN_STATE, else the one that `gear up` takes by itself.
Who may sign the platform's certificate is in GEARTRAIN_CA, else beside the address in `platform.json`.
Guarantees: a token comes from the environment, or from a file that nobody else may read, and from no command
line. That of a state folder is sent to that folder's own address only, never to one that was named elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from geartrain.adapters.home import home_folder
from geartrain.adapters.tls import check_private
from geartrain.errors import ConfigError
from geartrain.printable import is_word, printable
from geartrain_client.errors import UnreachableError

URL, STATE = "GEARTRAIN_URL", "GEARTRAIN_STATE"
CA = "GEARTRAIN_CA"
TOKEN, TOKEN_FILE = "GEARTRAIN_TOKEN", "GEARTRAIN_TOKEN_FILE"
"""Variables of the environment."""
DOOR_FILE = "platform.json"
LOCK_FILE = "lock"
"""What `gear up` holds of its state folder as long as it runs."""
TOKEN_CHARS_MAX = 512
_FILE_BYTES_MAX = 65_536
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Door:
    """Where REST answers. path: what stands before `/api/v1`, where a proxy put it; ca: PEM of who may sign
    its certificate, "" for whom the system trusts; folder: the state folder in which the address was found,
    None for none.
    """

    host: str
    port: int
    secure: bool = False
    path: str = ""
    token: str = field(default="", repr=False)
    ca: str = ""
    folder: Path | None = None

    @property
    def url(self) -> str:
        """As a person writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.path}"

    @property
    def shows_its_token(self) -> bool:
        """Whether others on the way can read the token."""
        return bool(self.token) and not self.secure and self.host not in _LOOPBACK


def find_door(
    url: str | None = None, state: Path | None = None, environment: Mapping[str, str] | None = None
) -> Door:
    """The platform that is meant. environment: None for that of this process.

    Raises `UnreachableError` where none was started, and `ConfigError`.
    """
    told = os.environ if environment is None else environment
    named = url or ("" if state is not None else told.get(URL, ""))
    folder = None if named else state or default_state(told)
    found = {} if folder is None else _door_file(folder)
    where = "--url" if url else URL if named else DOOR_FILE
    door = parse_url(named or str(found.get("url", "")), where)
    token_file = told.get(TOKEN_FILE) or found.get("token_file")
    if token := told.get(TOKEN, "").strip():
        _check_token(token, f"{TOKEN} in the environment")
    elif token_file:
        token = read_token(Path(str(token_file)))
    ca = told.get(CA) or str(found.get("ca") or "")
    return Door(door.host, door.port, door.secure, door.path, token, ca, folder)


def default_state(environment: Mapping[str, str]) -> Path:
    """The state folder where nobody names one: that of the environment, else the user's own."""
    if named := environment.get(STATE):
        return Path(named)
    base = environment.get("XDG_STATE_HOME")
    where = Path(base) if base else home_folder(f"--state or {STATE}") / ".local" / "state"
    return where / "geartrain" / "platform"


def parse_url(text: str, where: str) -> Door:
    """The parts of an address; raises `ConfigError`. where: who named it, for the sentence.

    >>> parse_url("http://127.0.0.1:8764", "--url").port
    8764
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    odd = parts.username or parts.query or parts.fragment or not text.isprintable() or " " in text
    if parts.scheme not in ("http", "https") or not parts.hostname or odd:
        shown = printable(text, 80)
        raise ConfigError(f"{where}: {shown!r} is no address: write http://HOST:PORT or https://HOST")
    secure = parts.scheme == "https"
    return Door(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"))


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read; raises `ConfigError`."""
    check_private(TOKEN_FILE, path)
    try:
        with path.open("rb") as file:
            token = file.read(_FILE_BYTES_MAX).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror or error}") from None
    _check_token(token, f"the token file {path}")
    return token


def _check_token(token: str, where: str) -> None:
    if len(token) > TOKEN_CHARS_MAX or not is_word(token):
        raise ConfigError(f"{where} must hold one word: give the right one with {TOKEN} or {TOKEN_FILE}")


def _door_file(state: Path) -> dict[str, Any]:
    path = state / DOOR_FILE
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_FILE_BYTES_MAX))
    except FileNotFoundError:
        raise UnreachableError(
            f"no platform was started in {state}: start it with gear up, or name one with --url or {URL}"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; start the platform again with gear up") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} names no platform: start it again with gear up")
    token_file = found.get("token_file")
    if isinstance(token_file, str) and token_file:
        found["token_file"] = str(state / token_file)  # an absolute one stays as it is
    ca = found.get("ca")
    if isinstance(ca, str) and ca:
        found["ca"] = str(state / ca)
    return found
