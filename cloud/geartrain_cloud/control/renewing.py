"""The certificate of an open platform's address, renewed in its file before it ends.

Beside REST and the device listener, which show what is in the file to each new connection. Guarantees: a
certificate is renewed when less than a third of its life is left, for the key and the names that it has.
Where the authority's key is elsewhere, the log says in time what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

from geartrain_cloud.certs import SERVER, Fleet
from geartrain_cloud.certs.authority import load_certificate
from geartrain_cloud.errors import CertificateError

_LOG = logging.getLogger("geartrain.control")

LOOK_S = 3_600.0
LEFT = 1 / 3
"""Of its life, with which a certificate is renewed."""
LEAST = timedelta(days=1)
"""By how much a new one has to outlast the one that is there."""


class ServerCertificate:
    """That of one address; `round` is called every so often.

    now_us: the wall clock, microseconds; monotonic_s: a clock; tell: a block in which it is renewed, given
    what an event says of that.
    """

    def __init__(
        self,
        fleet: Fleet,
        address: str,
        now_us: Callable[[], int],
        monotonic_s: Callable[[], float],
        tell: Callable[[Mapping[str, Any]], AbstractContextManager[object]],
    ) -> None:
        self._fleet, self._address, self._now_us = fleet, address, now_us
        self._monotonic_s, self._tell = monotonic_s, tell
        self._next_s = monotonic_s()

    def round(self) -> None:
        """Renew it where that is due; what cannot be done is said, and tried again."""
        if self._monotonic_s() < self._next_s:
            return
        self._next_s = self._monotonic_s() + LOOK_S
        try:
            self._renew(datetime.fromtimestamp(self._now_us() / 1e6, UTC))
        except CertificateError as error:
            _LOG.error("the certificate of %s is near its end, and is not renewed: %s", self._address, error)

    def _renew(self, now: datetime) -> None:
        path = self._fleet.paths(SERVER, self._address).certificate
        if not path.is_file():
            return
        shown = load_certificate(path.read_bytes(), str(path))
        begin, end = shown.not_valid_before_utc, shown.not_valid_after_utc
        longest = self._fleet.authority().not_valid_after_utc
        if end - now >= (end - begin) * LEFT or longest - end < LEAST:
            return
        days = max(1, round((end - begin) / timedelta(days=1)))
        with self._tell({"what": "issued", "kind": SERVER, "name": self._address}):
            self._fleet.issue(SERVER, self._address, _names(shown), days=days, renew=True, now=now)
        _LOG.info("the certificate of %s is renewed: it was to end on %s", self._address, end.date())


def _names(certificate: x509.Certificate) -> list[str]:
    """The hosts that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]
