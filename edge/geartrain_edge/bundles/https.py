"""Files of a platform over HTTPS: what python-tuf fetches with, over the standard library's `http.client`.

In the process that fetches a bundle. It shows the device's certificate. Guarantees: no proxy and no redirect.
An answer that ends late, drips or never ends is given up: its head has a deadline, its body a least rate.
How much is taken at all is bounded by whoever reads.
"""

from __future__ import annotations

import http.client
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from urllib.parse import urlsplit

import msgspec
from tuf.api.exceptions import DownloadError, DownloadHTTPError, SlowRetrievalError
from tuf.ngclient.fetcher import FetcherInterface

_CHUNK = 1 << 16


class Patience(msgspec.Struct, frozen=True):
    """How long is waited. silence_s: for one read; head_s: for the connection and the head of an answer;
    grace_s: then the body has to have come with `rate` bytes a second.
    """

    silence_s: float = 20.0
    head_s: float = 30.0
    grace_s: float = 30.0
    rate: int = 500

    @staticmethod
    def of(seconds: float) -> Patience:
        """For a link on which so long is waited, as a device's file says it."""
        return Patience(seconds * 2 / 3, seconds, seconds)


class HttpsFetcher(FetcherInterface):
    """One connection for each file; only for addresses below `base`. Used by the main thread."""

    def __init__(
        self,
        base: str,
        context: ssl.SSLContext,
        patience: Patience | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base, self._context = urlsplit(base), context
        self._patience, self._now_s = patience or Patience(), now_s

    def _fetch(self, url: str) -> Iterator[bytes]:
        asked = urlsplit(url)
        if (asked.scheme, asked.netloc) != ("https", self._base.netloc):
            raise DownloadError(f"{url} is not on the platform, {self._base.netloc}")
        connection = http.client.HTTPSConnection(
            asked.hostname or "",
            asked.port or 443,
            timeout=self._patience.silence_s,
            context=self._context,
        )
        try:
            with _deadline(self._patience.head_s, f"{url} has not answered"):
                connection.request("GET", asked.path, headers={"Accept-Encoding": "identity"})
                answer = connection.getresponse()
            if answer.status != 200:
                raise DownloadHTTPError(f"{url} was answered with {answer.status}", answer.status)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise DownloadError(_why(url, error)) from None
        except BaseException:
            connection.close()
            raise
        return self._body(url, connection, answer)

    def _body(
        self, url: str, connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse
    ) -> Iterator[bytes]:
        """The body in pieces, as long as it comes fast enough."""
        began_s, came, patience = self._now_s(), 0, self._patience
        try:
            while True:
                with _deadline(patience.silence_s, f"{url} has sent nothing"):
                    part = answer.read1(_CHUNK)
                if not part:
                    break
                came += len(part)
                yield part
                took_s = self._now_s() - began_s
                if took_s > patience.grace_s and came < patience.rate * took_s:
                    raise SlowRetrievalError(f"{url} comes too slowly: {came} bytes in {took_s:.0f} s")
            if answer.length:
                raise DownloadError(f"{url} ended {answer.length} bytes too early")
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(_why(url, error)) from None
        finally:
            connection.close()


@contextmanager
def _deadline(seconds: float, what: str) -> Iterator[None]:
    """Give up what takes longer than that in all, though it gets a byte now and then."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SlowRetrievalError(f"{what} for {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        with suppress(TypeError):
            signal.signal(signal.SIGALRM, before)


def _why(url: str, error: Exception) -> str:
    host = urlsplit(url).netloc
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{host} is not the platform that this device joined: {error.verify_message}"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{host} cannot be reached: {said}"
