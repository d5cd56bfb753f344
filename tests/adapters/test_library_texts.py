"""What is read in the sentences of libraries, against the versions that are installed here."""

from __future__ import annotations

import inspect
import ssl
from importlib import import_module
from typing import Any

import msgspec
import pytest

from geartrain.adapters.paho_log import read_alert, read_failure
from geartrain.errors.conversion import ConversionCode, read_conversion
from geartrain.errors.reason import make_reason


class _Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 0


class _Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: _Inner = _Inner()
    several: list[_Inner] = []
    by_name: dict[str, int] = {}


@pytest.mark.parametrize(
    ("data", "place", "code", "details"),
    [
        ({}, "", ConversionCode.MISSING_FIELD, {"field": "name"}),
        ({"name": "a", "odd": 1}, "", ConversionCode.UNKNOWN_FIELD, {"field": "odd"}),
        ({"name": "a", "inner": {"odd": 1}}, "inner", ConversionCode.UNKNOWN_FIELD, {"field": "odd"}),
        ({"name": 3}, "name", ConversionCode.OTHER, {"text": "expected `str`, got `int`"}),
        (
            {"name": "a", "several": [{}, {"count": "x"}]},
            "several[1].count",
            ConversionCode.OTHER,
            {"text": "expected `int`, got `str`"},
        ),
        (
            {"name": "a", "by_name": {"b": None}},
            "by_name[...]",
            ConversionCode.OTHER,
            {"text": "expected `int`, got `null`"},
        ),
        ([], "", ConversionCode.OTHER, {"text": "expected `object`, got `array`"}),
    ],
)
def test_what_msgspec_says_becomes_a_place_and_a_code(
    data: Any, place: str, code: ConversionCode, details: dict[str, str]
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(data, _Outer)
    assert read_conversion(caught.value) == (place, make_reason(code, **details))


def test_what_msgspec_may_say_in_a_later_version_is_told_whole() -> None:
    found = read_conversion(msgspec.ValidationError("Something else is wrong"))
    assert found == ("", make_reason(ConversionCode.OTHER, text="something else is wrong"))


def test_paho_tells_its_log_why_it_receives_no_more() -> None:
    assert "'failed to receive on socket: %s', err" in inspect.getsource(import_module("paho.mqtt.client"))
    assert (
        read_failure("failed to receive on socket: [SSL: TLSV1_ALERT_UNKNOWN_CA]")
        == "[SSL: TLSV1_ALERT_UNKNOWN_CA]"
    )
    assert read_failure("Sending PINGREQ") is None


@pytest.mark.parametrize(
    ("symbol", "words"),
    [
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "certificate revoked"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "certificate expired"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "bad certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", "unknown ca"),
        ("TLSV1_ALERT_ACCESS_DENIED", "access denied"),
    ],
)
def test_an_alert_of_openssl_is_told_in_words(symbol: str, words: str) -> None:
    known = {name.removeprefix("ALERT_") for name in ssl.AlertDescription.__members__}
    known |= {
        name.removeprefix("ALERT_DESCRIPTION_") for name in dir(ssl) if name.startswith("ALERT_DESCRIPTION_")
    }
    assert symbol.partition("ALERT_")[2] in known
    assert read_alert(f"[SSL: {symbol}] {words} (_ssl.c:2580)") == words


def test_other_texts_are_no_alert() -> None:
    assert read_alert("[Errno 104] Connection reset by peer") == ""
    assert read_alert("[SSL: WRONG_VERSION_NUMBER] wrong version number") == ""
