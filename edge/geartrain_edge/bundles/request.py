"""What the parent of a device's agents and the process that fetches a bundle say to one another: JSON."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """root: the folder of the device's bundles, with what it trusts; url: of the platform, `https://HOST:PORT`;
    ca, identity: PEM files of the fleet's authority, and of the device's key and certificate; code: what to
    have, empty for none; keep: those that are in use: all others go; programs: the folder of the device's
    programs, where one of these is meant, else empty.
    """

    root: str
    url: str = ""
    ca: str = ""
    identity: str = ""
    code: str = ""
    keep: tuple[str, ...] = ()
    programs: str = ""


class Answer(msgspec.Struct, frozen=True):
    """why: the sentence of what went wrong, empty where all was done; is_final: it would not go otherwise
    another time.
    """

    why: str
    is_final: bool = False
