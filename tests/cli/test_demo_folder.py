"""A state folder belongs to one program at a time, and to one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain_cloud.cli.demo_folder import (
    InputFile,
    Manifest,
    Setup,
    StateFolder,
    check_inputs,
    check_same,
)
from geartrain_cloud.errors import StateError


def manifest_of(path: Path, *, sample: bool = False) -> Manifest:
    parts = {"device-1": ["A"], "device-2": ["B"]}
    setup = Setup(
        inputs={"input": str(path)}, parts=parts, steps={}, devices={name: {} for name in parts}, whole={}
    )
    return Manifest(
        demo="stocks",
        cut="auto",
        options={"period": "year", "live": False, "city": None},
        inputs={"input": InputFile.of(path, sample=sample)},
        setup=setup,
    )


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text("symbol,date,price\nA,2020-01-01,1\n", encoding="utf-8")
    return path


def test_manifest_is_kept_and_private(tmp_path: Path, prices: Path) -> None:
    folder = StateFolder(tmp_path / "deep" / "state", "gear-")
    assert folder.manifest() is None
    folder.write(manifest_of(prices))
    folder.close()
    again = StateFolder(tmp_path / "deep" / "state", "gear-")
    assert again.manifest() == manifest_of(prices)
    again.close()
    assert (tmp_path / "deep" / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "state" / "demo.json").stat().st_mode & 0o777 == 0o600


def test_new_folder_is_made_where_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = StateFolder(None, "gear-stocks-")
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith("gear-stocks-")
    folder.close()


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    first = StateFolder(tmp_path, "gear-")
    with pytest.raises(StateError, match="is in use by another gear"):
        StateFolder(tmp_path, "gear-")
    first.close()
    StateFolder(tmp_path, "gear-").close()


def test_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x", encoding="utf-8")
    for _ in range(2):  # the refusal gives the folder back
        with pytest.raises(StateError, match=r"holds 'thesis\.tex' but no demo\.json"):
            StateFolder(tmp_path, "gear-")


def test_folder_that_cannot_be_made_is_a_sentence(prices: Path) -> None:
    with pytest.raises(StateError, match=r"state folder .*prices\.csv cannot be used: "):
        StateFolder(prices, "gear-")


def test_damaged_manifest_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("{", encoding="utf-8")
    folder = StateFolder(tmp_path, "gear-")
    with pytest.raises(StateError, match=r"demo\.json cannot be read .*: name a new state folder"):
        folder.manifest()
    (tmp_path / "demo.json").write_text('{"version": 2, "settings": {}}', encoding="utf-8")
    with pytest.raises(StateError, match=r"by an early version of Geartrain .*: name another folder$"):
        folder.manifest()
    folder.close()


@pytest.mark.parametrize(
    ("name", "value", "begun"),
    [
        ("cut", "cloud", "auto"),
        ("period", "day", "year"),
        ("devices", 3, 2),
        ("city", 3, "left out"),
        ("live", True, "left out"),
    ],
)
def test_other_settings_are_named(prices: Path, name: str, value: object, begun: object) -> None:
    manifest = manifest_of(prices)
    same = {"demo": "stocks", "cut": None, "period": None, "devices": None}
    check_same(manifest, same | {name: None if begun == "left out" else begun}, prices.parent)
    with pytest.raises(
        StateError, match=rf"begun with --{name} {begun}, and this run asks for --{name} {value}"
    ):
        check_same(manifest, same | {name: value}, prices.parent)


def test_input_must_be_what_it_was(prices: Path, tmp_path: Path) -> None:
    manifest = manifest_of(prices)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(prices.read_bytes())
    check_inputs(manifest, {}, tmp_path)
    check_inputs(manifest, {"input": copy}, tmp_path)
    copy.write_text("symbol,date,price\n", encoding="utf-8")
    with pytest.raises(
        StateError, match=r"was begun with .*prices\.csv, and --input .*copy\.csv is not the same"
    ):
        check_inputs(manifest, {"input": copy}, tmp_path)
    with pytest.raises(StateError, match="was begun with the sample, and --input"):
        check_inputs(manifest_of(prices, sample=True), {"input": copy}, tmp_path)
    with pytest.raises(StateError, match=r"was begun without --loops: leave --loops .*copy\.csv out"):
        check_inputs(manifest, {"loops": copy}, tmp_path)
    prices.write_text("symbol,date,price\nA,2020-01-01,2\n", encoding="utf-8")
    with pytest.raises(StateError, match=r"the input .*prices\.csv has changed since the run"):
        check_inputs(manifest, {}, tmp_path)
    prices.unlink()
    with pytest.raises(StateError, match=r"the input .*prices\.csv of .* cannot be read: No such file"):
        check_inputs(manifest, {}, tmp_path)
