"""TOML text is read back by the standard library as what was given."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.adapters.toml_text import to_toml

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalar = text | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
value = scalar | st.lists(scalar, max_size=4)
content = st.dictionaries(
    text, st.recursive(value, lambda v: st.dictionaries(text, v, max_size=4), max_leaves=12)
)


@given(content)
def test_what_is_written_is_read_back(given_content: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(given_content)) == given_content


def test_layout_is_for_people() -> None:
    assert to_toml({"a": 1, "steps": {"drawdown": {"period": "year"}}, "b": ["x", 'y"\x7f']}) == (
        'a = 1\nb = ["x", "y\\"\\u007F"]\n\n[steps.drawdown]\nperiod = "year"\n'
    )


def test_empty_tables_are_kept() -> None:
    assert tomllib.loads(to_toml({"steps": {}, "deep": {"a": {}}})) == {"steps": {}, "deep": {"a": {}}}


def test_not_a_number_has_a_form() -> None:
    assert math.isnan(tomllib.loads(to_toml({"x": math.nan}))["x"])


@pytest.mark.parametrize("wrong", [None, b"bytes", object()])
def test_what_toml_cannot_hold_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="has no TOML form"):
        to_toml({"x": wrong})
