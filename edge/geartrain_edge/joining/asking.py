"""What a device asks the platform before it has a connection to the broker: HTTPS by the standard library.

Guarantees: nothing is told to a platform whose authority has not the fingerprint that the device was given.
Answers are bounded in size and time. Whatever goes wrong is one sentence, a `JoinError` or a `NotYetError`.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from geartrain.printable import printable
from geartrain_edge.errors import own_clock
from geartrain_edge.joining.errors import JoinError, NotYetError

TIMEOUT_S = 20.0
ANSWER_BYTES_MAX = 256 << 10
_FINGERPRINT = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's numbers of what it finds wrong."""


class _Error(msgspec.Struct, frozen=True):
    sentence: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class Platform:
    """Where the platform listens for devices: `https://HOST:PORT`."""

    def __init__(self, url: str) -> None:
        """Raises `JoinError` for another form."""
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "", parts.port or 443
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != "https" or not self.host or parts.path.strip("/") or parts.query:
            raise JoinError(f"{printable(url, 80)!r} is no address of a platform: write https://HOST:PORT")
        self.url = url.rstrip("/")

    def authority(self, fingerprint: str) -> str:
        """The certificate of the fleet's authority, PEM, which the platform shows to anybody; raises
        `JoinError` where it is not the one of this fingerprint, `sha256:` and 64 hexadecimal digits.
        """
        wanted = _FINGERPRINT.fullmatch(fingerprint.strip().lower())
        if wanted is None:
            raise JoinError("the fingerprint is not sha256: and 64 hexadecimal digits: copy the whole line")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        # Nothing is told and nothing is believed here: what comes counts by its fingerprint alone.
        context.verify_mode = ssl.CERT_NONE
        pem = self._ask(context, "GET", "/v1/authority", None).get("certificate", "")
        try:
            found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
        except (ValueError, TypeError):
            found = ""
        if not hmac.compare_digest(found, wanted[1]):
            raise JoinError(
                f"what answers at {self.url} has not the join line's fingerprint: it is another platform, "
                "or somebody is in between; copy the line anew"
            )
        return str(pem)

    def post(
        self, path: str, body: dict[str, str], authority: str, identity: Path | None = None
    ) -> dict[str, Any]:
        """Ask the platform of this authority (PEM); identity: shows the device's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(cadata=authority)
            if identity is not None:
                context.load_cert_chain(identity, password=lambda: "")
        except (OSError, ValueError) as error:
            raise JoinError(f"the certificates of this device cannot be used: {error}: join anew") from None
        return self._ask(context, "POST", path, msgspec.json.encode(body))

    def _ask(self, context: ssl.SSLContext, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=context)
        try:
            connection.request(method, path, body, {"Connection": "close"})
            answer = connection.getresponse()
            status, content = answer.status, answer.read(ANSWER_BYTES_MAX + 1)
        except ssl.SSLCertVerificationError as error:
            raise self._unverified(error) from None
        except ssl.SSLError as error:
            raise NotYetError(f"{self.url} breaks the connection off: {error.reason or error}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NotYetError(f"{self.url} cannot be reached: {why}: is there a network?") from None
        finally:
            connection.close()
        return self._understood(status, content)

    def _unverified(self, error: ssl.SSLCertVerificationError) -> JoinError | NotYetError:
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            which = "is not valid yet" if error.verify_code == _NOT_YET_VALID else "has ended"
            return NotYetError(f"{own_clock()} the certificate of {self.url} {which}: set the clock")
        return JoinError(f"the certificate of {self.url} is not good: {error.verify_message}")

    def _understood(self, status: int, content: bytes) -> dict[str, Any]:
        try:
            if status == 200 and len(content) <= ANSWER_BYTES_MAX:
                return msgspec.json.decode(content, type=dict[str, Any])
            said = printable(msgspec.json.decode(content, type=_Refusal).error.sentence, 400)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = ""
        if not said or status == 200:
            raise NotYetError(
                f"what answers at {self.url} is no platform, or of another version: status {status}"
            )
        raise JoinError(said) if status in (400, 403) else NotYetError(said)
