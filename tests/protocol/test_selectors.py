"""Selectors: what each text chooses, compared with the condition written out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from geartrain.errors import SelectorError
from geartrain.fleet.selectors import parse_selector

FLEET = {
    "truck-1": {"kind": "truck", "site": "north"},
    "truck-2": {"kind": "truck", "site": "south"},
    "tank-1": {"kind": "tank"},
    "bare": {},
}
Condition = Callable[[str, dict[str, str]], bool]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("all", lambda d, labels: True),
        ("truck-2", lambda d, labels: d == "truck-2"),
        ("kind=truck", lambda d, labels: labels.get("kind") == "truck"),
        ("kind!=truck", lambda d, labels: labels.get("kind") != "truck"),
        (
            " kind = truck , site != north ",
            lambda d, labels: labels.get("kind") == "truck" and labels.get("site") != "north",
        ),
        ("tank-1,kind=truck", lambda d, labels: False),
    ],
)
def test_a_selector_means_its_condition(text: str, condition: Condition) -> None:
    selector = parse_selector(text)
    for device, labels in FLEET.items():
        assert selector.matches(device, labels) is condition(device, labels)
    assert parse_selector(str(selector)) == selector


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "kind=", "=truck", "kind==truck", "a,b", "kind=truck,", "a b", "kind=\x1b[31m", "../x"),
        *("kind!truck", "x" * 2_000, "a=b," * 20 + "c=d"),
    ],
)
def test_what_is_no_selector_is_refused_in_a_plain_sentence(text: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
