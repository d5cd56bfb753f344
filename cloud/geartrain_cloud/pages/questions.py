"""What a page may be asked at all: the form of a request, before and after a page has answered it.

It stands between a page's connections and its answers. Guarantees: the size of a request is bounded before
anything in it is decoded. A parameter that is given twice, or that the answer did not look at, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

ADDRESS_CHARS_MAX = 4_096
PARAMETERS_MAX = 16


class Question(Mapping[str, str]):
    """The parameters of a request, which notes those that were looked at."""

    def __init__(self, request: web.Request) -> None:
        """Raises `HTTPBadRequest` for too many, and for one that is given twice."""
        found = request.query
        if len(found) > PARAMETERS_MAX:
            raise web.HTTPBadRequest(reason=f"it has {len(found)} parameters; {PARAMETERS_MAX} are the most")
        self._values = dict(found)
        if len(self._values) < len(found):
            names = [name for name, _ in found.items()]
            twice = next(name for name in names if names.count(name) > 1)
            raise web.HTTPBadRequest(reason=f"the parameter {_short(twice)} is given twice")
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        """The value; whoever asks for it knows the name, whether it is there or not."""
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """The names, all of which count as looked at."""
        self._read |= set(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def check(self) -> None:
        """Raises `HTTPBadRequest` if one was not looked at."""
        if unknown := sorted(set(self._values) - self._read):
            known = f": it takes {', '.join(sorted(self._read))}" if self._read else ": it takes none"
            raise web.HTTPBadRequest(reason=f"there is no parameter {_short(unknown[0])} here{known}")


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")


@web.middleware
async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse an address that is too long, and a body, which no page takes."""
    if len(request.raw_path) > ADDRESS_CHARS_MAX:
        reason = f"its address has {len(request.raw_path)} characters; {ADDRESS_CHARS_MAX} are the most"
        raise web.HTTPRequestURITooLong(reason=reason)
    if request.can_read_body and request.method in ("GET", "HEAD"):
        raise web.HTTPBadRequest(reason="it has a body, and a page takes none")
    return await handler(request)


async def unexpected(request: web.Request) -> web.StreamResponse | None:
    """Refuse the header Expect, which is for bodies."""
    sentence = f"{request.path}: it has a header Expect, and a page takes no body"
    return web.json_response({"error": sentence}, status=417)
