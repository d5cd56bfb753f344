"""Whether an answer of REST is what the table of its routes says."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from geartrain_cloud.control.main import ANSWERING
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.openapi import REFUSED, Contract
from geartrain_cloud.rest.routes import declared

_ROUTES = [
    (one, re.compile(re.sub(r"\{\w+\}", "[^/]+", one.path.replace(".", "[.]"))))
    for one in declared([*ANSWERING, Contract])
]


def check_answer(method: str, path: str, status: int, value: Any) -> None:
    """Raise `AssertionError` where the status or the JSON is not declared; path: below the root."""
    place = path.partition("?")[0]
    found = [one for one, form in _ROUTES if one.method == method and form.fullmatch(place)]
    kind: Any = answers.Failure
    if status < 400:
        assert found, f"{method} {place} is not declared"
        assert status in found[0].statuses, f"{method} {place} answers {status}"
        kind = found[0].answer
    else:
        assert status in REFUSED or (status == 405 and not found), f"{method} {place} answers {status}"
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise AssertionError(f"{method} {place} answers what it does not declare: {error}") from None
