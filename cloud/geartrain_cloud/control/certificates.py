"""`/certs`: the fleet's authority, and what it has issued, of a platform that runs.

Between REST and the fleet's folder. Guarantees: no key travels. Whoever wants a certificate sends a signing
request for a key of his own, and the authority's key stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from aiohttp import web

from geartrain_cloud.control.inspecting import page_of
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import (
    AuthorityBody,
    EmptyBody,
    IssueBody,
    PlacesQuery,
    body_of,
    key_of,
)
from geartrain_cloud.rest.routes import route


class Certificates:
    """Those of one platform."""

    def __init__(self, config: PlatformConfig, store: ControlStore) -> None:
        self._config, self._store = config, store

    @route("GET", "/certs", "viewer", answers.Certificates, query=PlacesQuery)
    async def issued(self, request: web.Request) -> Answer:
        """What the fleet's authority has issued, with its end and its revocation."""
        from geartrain_cloud.certs.told import issued_told  # only who has a fleet needs cryptography

        self._check_authority()
        return page_of(request, await asyncio.to_thread(issued_told, self._config.certs))

    @route("POST", "/certs/authority", "admin", answers.Authority, statuses=(201,), body=AuthorityBody)
    async def init(self, request: web.Request) -> Answer:
        """Make the authority that signs all certificates of the fleet; one is never replaced."""
        from geartrain_cloud.certs import Fleet

        body, asked = await body_of(request, AuthorityBody)
        fleet = Fleet(self._config.certs)

        def work() -> dict[str, Any]:
            if fleet.ca.exists():
                raise ConflictError("the platform has an authority already: it is never replaced")
            fleet.init(body.fleet, body.days)
            return {
                "fingerprint": fleet.fingerprint(),
                "certificate": fleet.ca.read_text(encoding="ascii"),
            }

        return await self._once(request, asked, 201, {"what": "authority", "fleet": body.fleet}, work)

    @route(
        *("POST", "/certs/{kind}/{subject}/issue", "admin", answers.SignedCertificate),
        statuses=(201,),
        body=IssueBody,
    )
    async def issue(self, request: web.Request) -> Answer:
        """Issue a certificate for the key of a signing request; `kind` is `device`, `server` or `cloud`. What
        was issued to the name before goes on to its end.
        """
        from geartrain_cloud.certs import Fleet
        from geartrain_cloud.certs.told import entry_told

        body, asked = await body_of(request, IssueBody)
        self._check_authority()
        fleet, kind, subject = Fleet(self._config.certs), *_whose(request)

        def work() -> dict[str, Any]:
            life = timedelta(days=body.days)
            made = fleet.sign(subject, body.request.encode(), life, kind=kind, hosts=body.hosts)
            authority = fleet.ca.read_text(encoding="ascii")
            signed = {"certificate": made.certificate.decode(), "authority": authority}
            return {**entry_told(made.entry), **signed}

        return await self._once(request, asked, 201, _said("issued", kind, subject), work)

    @route(
        *("POST", "/certs/{kind}/{subject}/revoke", "admin", answers.RevokedCertificates),
        body=EmptyBody,
    )
    async def revoke(self, request: web.Request) -> Answer:
        """Revoke all certificates of a name, and write the list that the broker reads."""
        from geartrain_cloud.certs.told import revoked_told

        _, asked = await body_of(request, EmptyBody)
        self._check_authority()
        kind, subject = _whose(request)
        said = _said("revoked", kind, subject)
        return await self._once(
            request, asked, 200, said, lambda: revoked_told(self._config.certs, kind, subject)
        )

    def _check_authority(self) -> None:
        if not (self._config.certs / "ca.pem").is_file():
            raise ConflictError(
                "this platform has no authority: it is not open to other machines, and broker_certs names "
                "no certificates"
            )

    async def _once(
        self,
        request: web.Request,
        asked: str,
        status: int,
        said: Mapping[str, Any],
        work: Callable[[], dict[str, Any]],
    ) -> Answer:
        """Do it in a thread, tell of it, and keep its answer under the idempotency key."""
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        device = said["name"] if said.get("kind") == "device" else ""
        with self._store.announcements.announced("certificate", device, said) as told:
            answer = status, await asyncio.to_thread(work)

            def noted() -> Answer:
                told()
                return answer

            return self._store.answers.once(key, asked, noted)


def _whose(request: web.Request) -> tuple[str, str]:
    return request.match_info["kind"], request.match_info["subject"]


def _said(what: str, kind: str, subject: str) -> dict[str, Any]:
    return {"what": what, "kind": kind, "name": subject}
