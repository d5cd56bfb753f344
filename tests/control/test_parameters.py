"""Parameters of an address: each becomes a value of its declared type, or the request is refused."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from geartrain_cloud.control_store.errors import InvalidError
from geartrain_cloud.rest.requests import declare, query_of
from geartrain_cloud.rest.routes import route


class AnyQuery(msgspec.Struct, frozen=True):
    """One of each type."""

    deep: bool = False
    maybe: bool | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    order: Literal["up", "down"] = "up"
    name: str = ""


class NeededQuery(msgspec.Struct, frozen=True):
    """One that must be there."""

    deep: bool


def read(asked: str) -> AnyQuery:
    request = make_mocked_request("GET", f"/x?{asked}")
    declare(request, AnyQuery, None)
    return query_of(request, AnyQuery)


@pytest.mark.parametrize(
    ("asked", "deep", "maybe"),
    [
        ("", False, None),
        ("deep=true", True, None),
        ("deep=false", False, None),
        ("maybe=false", False, False),
        ("deep=true&maybe=true", True, True),
    ],
)
def test_a_parameter_of_type_bool_is_what_it_says(asked: str, deep: bool, maybe: bool | None) -> None:
    found = read(asked)
    assert (found.deep, found.maybe) == (deep, maybe)
    assert type(found.deep) is bool


@pytest.mark.parametrize(
    "text",
    ["", "False", "TRUE", "0", "1", "yes", "no", "null", "true%20", "true%00", "%F0%9F%99%82", "t" * 2_000],
)
@pytest.mark.parametrize("name", ["deep", "maybe"])
def test_any_other_text_is_refused_in_a_sentence(name: str, text: str) -> None:
    with pytest.raises(InvalidError, match=f"^{name}: give true or false, not ") as refused:
        read(f"{name}={text}")
    said = str(refused.value)
    assert said.isprintable()
    assert len(said) < 200


def test_one_that_must_be_there_is_missed_by_name() -> None:
    with pytest.raises(InvalidError, match="deep: this parameter is missing"):
        declare(make_mocked_request("GET", "/x"), NeededQuery, None)


class FloatQuery(msgspec.Struct, frozen=True):
    """A type that no address is read as."""

    share: float = 0.0


class EndlessQuery(msgspec.Struct, frozen=True):
    """A whole number without a bound."""

    count: int = 0


@pytest.mark.parametrize("kind", [FloatQuery, EndlessQuery])
def test_a_route_cannot_be_declared_with_parameters_that_would_stay_texts(kind: type[msgspec.Struct]) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__}.*no parameter is read as"):
        route("GET", "/x", "viewer", dict, query=kind)
