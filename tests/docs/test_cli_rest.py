"""To a platform that runs, `gear` can do nothing that REST cannot: each command has its requests."""

from __future__ import annotations

import pytest

from geartrain_cloud.control.main import ANSWERING
from geartrain_cloud.rest.openapi import Contract
from geartrain_cloud.rest.routes import declared
from tests.docs.test_cli_page import commands

HERE = "asks no platform: it works on what is on this machine"
STARTS = "starts, ends or makes anew a platform of this machine, for which none may run, or none does yet"

COMMANDS: dict[str, str | tuple[str, ...]] = {
    "new": HERE,
    "run": HERE,
    "plan": HERE,
    "doctor": HERE,
    "page": HERE,
    "key new": HERE,
    "key show": HERE,
    "broker config": HERE,
    "up": STARTS,
    "down": STARTS,
    "bench": STARTS,
    "restore": STARTS,
    "submit": ("POST /apps", "GET /apps/{name}", "PUT /bundles/{name}", "POST /trust/targets"),
    "list": ("GET /apps",),
    "info": ("GET /apps/{name}",),
    "logs": ("GET /apps/{name}/logs",),
    "table": ("GET /apps/{name}/tables", "GET /apps/{name}/tables/{table}"),
    "explain": ("GET /apps/{name}/tables/{table}/explain",),
    "fetch": ("GET /apps/{name}/records",),
    "query": ("GET /apps/{name}/steps/{step}/state",),
    "kill": ("POST /apps/{name}/kill",),
    "resume": ("POST /apps/{name}/resume",),
    "retain": ("POST /apps/{name}/retain",),
    "update": ("POST /apps/{name}/update",),
    "attach": ("POST /apps/{name}/update",),
    "replace": ("POST /apps/{name}/update",),
    "remove": ("POST /apps/{name}/update",),
    "rollback": ("POST /apps/{name}/rollback",),
    "cut": ("POST /apps/{name}/cut",),
    "move": ("POST /apps/{name}/move",),
    "scale": ("POST /apps/{name}/scale",),
    "backfill": ("PUT /apps/{name}/history/{file}", "POST /apps/{name}/backfill"),
    "revisions": ("GET /apps/{name}/revisions",),
    "replay": ("POST /apps/{name}/replay",),
    "status": ("GET /status",),
    "events": ("GET /events",),
    "audit": ("GET /audit",),
    "device add": ("POST /devices", "POST /devices/{device}/token"),
    "device token": ("POST /devices/{device}/token",),
    "device ls": ("GET /devices",),
    "device show": ("GET /devices/{device}",),
    "device label": ("PATCH /devices/{device}",),
    "device purge": ("POST /devices/{device}/purge", "GET /devices/{device}/purge"),
    "device retire": ("POST /devices/{device}/retire",),
    "device revoke": ("POST /devices/{device}/revoke",),
    "device accept": ("POST /devices/{device}/accept",),
    "flash": ("POST /devices", "POST /devices/{device}/token"),
    "agent ls": ("GET /devices",),
    "agent upgrade": ("POST /agents/upgrade", "PUT /programs/{name}"),
    "key ls": ("GET /trust",),
    "key trust": ("POST /trust/root",),
    "key distrust": ("POST /trust/root",),
    "token add": ("POST /tokens",),
    "token ls": ("GET /tokens",),
    "token revoke": ("POST /tokens/{token}/revoke",),
    "secret set": ("PUT /apps/{name}/secrets/{secret}",),
    "secret ls": ("GET /secrets",),
    "secret rm": ("POST /apps/{name}/secrets/{secret}/remove",),
    "backup": ("POST /backups", "GET /backups/{backup}"),
    "log ls": ("GET /log",),
    "log show": ("GET /log/{flow}/entries",),
    "log verify": ("GET /log/verify",),
    "log erase": ("POST /log/devices/{device}/erase",),
    "log trim": ("POST /log/trim",),
    "log queries": ("GET /log/queries",),
    "log forget": ("POST /log/queries/{query}/forget",),
    "log devices": ("GET /log/devices",),
    "quarantine ls": ("GET /quarantine",),
    "quarantine show": ("GET /quarantine/{number}",),
    "quarantine resubmit": ("POST /quarantine/{number}/resubmit",),
    "deadletters ls": ("GET /deadletters",),
    "deadletters show": ("GET /deadletters/{id}",),
    "deadletters resubmit": ("POST /deadletters/{id}/resubmit",),
    "certs init": ("POST /certs/authority",),
    "certs issue": ("POST /certs/{kind}/{subject}/issue",),
    "certs revoke": ("POST /certs/{kind}/{subject}/revoke",),
    "certs ls": ("GET /certs",),
}
"""What each command asks of a platform, or why it asks none."""
THERE = commands()
ROUTES = {one.name for one in declared([*ANSWERING, Contract])}


def test_each_command_is_in_the_table_and_no_other() -> None:
    assert {" ".join(path) for path in THERE} == set(COMMANDS)


@pytest.mark.parametrize("name", [name for name, asks in COMMANDS.items() if isinstance(asks, tuple)])
def test_what_a_command_asks_of_a_platform_rest_answers(name: str) -> None:
    assert set(COMMANDS[name]) <= ROUTES
    options = {max(one.opts, key=len) for one in THERE[tuple(name.split())].params}
    assert "--url" in options, "which platform it asks"


@pytest.mark.parametrize("name", [name for name, asks in COMMANDS.items() if not isinstance(asks, tuple)])
def test_a_command_that_asks_no_platform_has_no_way_to_name_one(name: str) -> None:
    assert "--url" not in {max(one.opts, key=len) for one in THERE[tuple(name.split())].params}
