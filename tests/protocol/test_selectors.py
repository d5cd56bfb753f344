"""Selectors: what each text chooses, compared with the condition written out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from geartrain.errors import SelectorError
from geartrain.fleet.selectors import CLOUD_DEVICE, CLOUD_LABELS, IN_CLOUD, parse_selector

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


def test_the_platform_s_own_device_is_meant_by_its_name_or_label_alone() -> None:
    for text in ("all", "kind!=truck", "zone!=lab"):
        assert not parse_selector(text).matches(CLOUD_DEVICE, CLOUD_LABELS)
        assert parse_selector(text).matches(CLOUD_DEVICE, {"kind": "room"}), (
            "one of a fleet that is called so"
        )
    for text in (IN_CLOUD, CLOUD_DEVICE, f"{IN_CLOUD},zone!=lab"):
        assert parse_selector(text).matches(CLOUD_DEVICE, CLOUD_LABELS)
    assert not parse_selector(f"{IN_CLOUD},zone=lab").matches(CLOUD_DEVICE, CLOUD_LABELS)


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
