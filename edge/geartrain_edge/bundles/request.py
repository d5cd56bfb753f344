"""What the parent of a device's agents and the process that fetches a bundle say to one another: JSON."""

from __future__ import annotations

import msgspec

PATIENCE_S = 30.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """root: the folder of the device's bundles, with what it trusts; url: of the platform, `https://HOST:PORT`;
    ca, identity: PEM files of the fleet's authority, and of the device's key and certificate; code: what to
    have, empty for none; keep: those that are in use: all others go; programs: the folder of the device's
    programs, where one of these is meant, else empty; floor_bytes: of the disk that stay free;
    patience_s: how long is waited for an answer of the platform.
    """

    root: str
    url: str = ""
    ca: str = ""
    identity: str = ""
    code: str = ""
    keep: tuple[str, ...] = ()
    programs: str = ""
    floor_bytes: int = 0
    patience_s: float = PATIENCE_S


class Answer(msgspec.Struct, frozen=True):
    """why: the sentence of what went wrong, empty where all was done; is_final: it would not go otherwise
    another time.
    """

    why: str
    is_final: bool = False
