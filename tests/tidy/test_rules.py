"""Each rule finds the offence that it is there for, and lets the lawful neighbour pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import rules
from tests.tidy.messages import read_messages
from tests.tidy.rules import Rule
from tests.tidy.source import Source

CORE, EDGE, CLOUD = "protocol/geartrain/x.py", "edge/geartrain_edge/x.py", "cloud/geartrain_cloud/x.py"
TEST = "tests/cloud/test_x.py"


def offences(rule: Rule, path: str, text: str) -> list[str]:
    return list(rule(Source(Path(path), text)))


def function_of(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


BAD: list[tuple[Rule, str, str]] = [
    (read_messages, CORE, "if one.why == 'it is late': ..."),
    (read_messages, CORE, "if one.reason != LATE: ..."),
    (read_messages, CORE, "if report.detail in (LATE, 'it is early'): ..."),
    (read_messages, EDGE, "if WENT_BACK in one.why: ..."),
    (read_messages, EDGE, "if 'refused' in status().alarm.lower(): ..."),
    (read_messages, EDGE, "if why.startswith(LATE): ..."),
    (read_messages, EDGE, "count = int(entry.detail.split(' ')[0])"),
    (read_messages, EDGE, "_, _, why = host.why.partition(f'revision {number}: ')"),
    (read_messages, CLOUD, "import re\nfound = re.search('revision [0-9]+', entry.detail)"),
    (read_messages, CLOUD, "found = _REVISION.search(one.sentence)"),
    (read_messages, CLOUD, "if 'in use' in str(error): ..."),
    (read_messages, CLOUD, "rest = str(error).removeprefix('table: ')"),
    (
        read_messages,
        CLOUD,
        "def f(error):\n    text = ' '.join(str(error).split())\n    return text.endswith('late')",
    ),
    (read_messages, CLOUD, "if error.args[0] == 'late': ..."),
    (read_messages, CLOUD, "_LATE = 'a fresh spool: '\ndef f(text):\n    return text.startswith(_LATE)"),
    (read_messages, CLOUD, "_LATE = 'cannot connect back'\ndef f(trace):\n    return _LATE in trace"),
    (read_messages, CLOUD, "clause = entry_sentence(reason).partition(': ')[2]"),
    (read_messages, CLOUD, "if letter == 'state that is not taken in': ..."),
    (rules.import_direction, EDGE, "import geartrain_cloud.log"),
    (rules.import_direction, CLOUD, "from geartrain_devices import files"),
    (rules.import_direction, CORE, "def f():\n    from geartrain_edge.spool.spool import Spool"),
    (rules.import_direction, "devices/geartrain_devices/x.py", "import geartrain_examples"),
    (rules.import_direction, "client/geartrain_client/x.py", "import geartrain_cloud.errors"),
    (rules.import_direction, "examples/geartrain_examples/x.py", "import geartrain_cloud"),
    (rules.import_direction, EDGE, "import tests.factories"),
    (rules.effects, CORE, "import asyncio"),
    (rules.effects, CORE, "from time import monotonic"),
    (rules.effects, CORE, "import os.path"),
    (rules.effects, CORE, "from geartrain.adapters.disk import FileDisk"),
    (rules.effects, "protocol/geartrain/wire/x.py", "def f():\n    import socket"),
    (rules.effects, CORE, "text = open('a').read()"),
    (rules.effects, CORE, "import datetime\nnow = datetime.datetime.now()"),
    (rules.lengths, TEST, function_of(61)),
    (rules.names, "cloud/geartrain_cloud/utils.py", ""),
    (rules.names, "cloud/geartrain_cloud/common/x.py", ""),
    (rules.names, "tests/edge/spool_helpers.py", ""),
    (rules.names, EDGE, "class SpoolManager: ..."),
    (rules.docstrings, CORE, "x = 1"),
    (rules.docstrings, CORE, ""),
    (rules.unfinished, CORE, "x = 1  # TODO later"),
    (rules.unfinished, CORE, "def f():\n    '''FIXME: wrong.'''"),
    (rules.unfinished, CORE, "def f():\n    raise NotImplementedError"),
    (rules.unfinished, CORE, "def f():\n    raise NotImplementedError('soon')"),
    (rules.executable_data, CLOUD, "import pickle"),
    (rules.executable_data, CLOUD, "from marshal import loads"),
    (rules.executable_data, CLOUD, "x = eval('1')"),
    (rules.executable_data, CLOUD, "import yaml\nyaml.load(text)"),
    (rules.left_out, TEST, "import pytest\n@pytest.mark.skip\ndef test_a(): ..."),
    (rules.left_out, TEST, "import pytest\n@pytest.mark.skipif(True, reason='')\ndef test_a(): ..."),
    (rules.left_out, TEST, "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_a(): ..."),
    (rules.left_out, TEST, "import pytest\nnumpy = pytest.importorskip('numpy')"),
    (rules.left_out, TEST, "from pytest import skip\nskip('no')"),
    (rules.left_out, TEST, "def test_a(self):\n    self.skipTest('no')"),
    (rules.raised_in_groups, EDGE, "try:\n    f()\nexcept* OSError as group:\n    raise first_of(group)"),
    (rules.tests_prove, TEST, "def test_a():\n    run()"),
    (rules.tests_prove, TEST, "async def test_a():\n    await run()"),
    (rules.own_limits, TEST, "done = subprocess.run(command, timeout=60)"),
    (rules.own_limits, TEST, "await asyncio.wait_for(done, 30)"),
    (rules.own_limits, TEST, "async with asyncio.timeout(10): ..."),
    (rules.own_limits, TEST, "ready.wait(30)"),
    (rules.own_limits, TEST, "deadline = time.monotonic() + 60"),
]

GOOD: list[tuple[Rule, str, str]] = [
    (read_messages, CORE, "if one.why: ..."),
    (read_messages, CORE, "if one.why == '' or (why, state) != (self.why, self.state): ..."),
    (read_messages, CORE, "if one.reason.code == EntryCode.LATE or nack.reason is NackReason.GAP: ..."),
    (read_messages, CORE, "if error.reason == 'WRONG_VERSION_NUMBER': ..."),
    (read_messages, CORE, "line = ' '.join(str(error).split())\nlines = why.split('\\n')"),
    (read_messages, CORE, "short = why[:400]\nif state == 'going over': ..."),
    (
        read_messages,
        CORE,
        "if name in said and mode in ('edge', 'cloud') and 'unmoved' in reason.details: ...",
    ),
    (read_messages, CORE, "if text.startswith('-----BEGIN') or path.endswith('.csv'): ..."),
    (read_messages, "cloud/geartrain_cloud/spark/error_texts.py", "lost = 'failed to connect' in trace"),
    (read_messages, TEST, "assert 'is late' in one.why"),
    (rules.import_direction, EDGE, "import geartrain.wire\nimport geartrain_edge.spool.spool\nimport os"),
    (
        rules.import_direction,
        "simulation/geartrain_simulation/x.py",
        "import geartrain_edge, geartrain_cloud",
    ),
    (rules.import_direction, "cloud/geartrain_cloud/x.py", "import geartrain_client.errors, geartrain"),
    (rules.import_direction, "examples/geartrain_examples/x.py", "import geartrain, geartrain_devices"),
    (rules.import_direction, TEST, "import geartrain_edge, geartrain_cloud, tests.factories"),
    (rules.effects, "protocol/geartrain/adapters/net.py", "import asyncio, aiomqtt, os, time"),
    (rules.effects, EDGE, "import asyncio"),
    (
        rules.effects,
        CORE,
        "import geartrain.records.event_time\nfrom geartrain.ports import disk\ndisk.open('a')",
    ),
    (rules.lengths, CORE, "x = 1\n" * 501),
    (rules.lengths, CORE, function_of(60)),
    (rules.names, "cloud/geartrain_cloud/commonest.py", "class Managed: ..."),
    (rules.docstrings, CORE, '"""What it is."""'),
    (rules.unfinished, CORE, 'words = ["TODO"]  # a list of words'),
    (rules.executable_data, CLOUD, "import ast\nast.literal_eval('1')\nframe.eval('x')"),
    (rules.left_out, TEST, "rows.skip(3)\nimport pytest\npytest.fail('no')"),
    (rules.raised_in_groups, EDGE, "try:\n    f()\nexcept* OSError as group:\n    raise"),
    (rules.raised_in_groups, EDGE, "try:\n    f()\nexcept OSError as error:\n    raise E() from error"),
    (rules.tests_prove, TEST, "def test_a():\n    assert run()"),
    (rules.tests_prove, TEST, "def test_a():\n    with pytest.raises(ValueError):\n        run()"),
    (rules.tests_prove, TEST, "def test_a():\n    assert_same(run(), 1)"),
    (rules.tests_prove, CORE, "def test_a():\n    run()"),
    (rules.own_limits, TEST, "done = subprocess.run(command, timeout=WAIT_S)"),
    (rules.own_limits, TEST, "assert not over.wait(0.01)"),
    (rules.own_limits, CORE, "deadline = time.monotonic() + 60"),
    (rules.own_limits, "tests/bench/stages.py", "deadline = time.monotonic() + 60"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_offence_is_found(rule: Rule, path: str, text: str) -> None:
    found = offences(rule, path, text)
    assert found
    assert all(offence.startswith(path) for offence in found)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_lawful_neighbour_passes(rule: Rule, path: str, text: str) -> None:
    assert offences(rule, path, text) == []


def test_every_rule_has_a_bad_and_a_good_example() -> None:
    assert {rule for rule, _, _ in BAD} == set(rules.RULES)
    assert {rule for rule, _, _ in GOOD} == set(rules.RULES)


def test_long_module_is_a_warning_and_no_offence() -> None:
    assert rules.long_module not in rules.RULES
    assert list(rules.long_module(Source(Path(CORE), "x = 1\n" * 500))) == []
    assert list(rules.long_module(Source(Path(CORE), "x = 1\n" * 501))) == [
        f"{CORE} has 501 lines, more than 500: is it one concept?"
    ]


def test_undeclared_package_is_found_and_a_declared_one_passes() -> None:
    declared = {"geartrain_edge": frozenset({"msgspec"})}
    source = Source(Path(EDGE), "import os, geartrain, msgspec\nfrom numpy.linalg import norm")
    assert list(rules.undeclared(source, declared)) == [
        f"{EDGE}:2 numpy is imported, but no dependency of geartrain_edge declares it"
    ]


def test_module_names_leave_out_the_folder_of_the_part() -> None:
    assert (
        Source(Path("edge/geartrain_edge/spool/spool/__init__.py"), "").module == "geartrain_edge.spool.spool"
    )
    assert Source(Path("protocol/geartrain/wire/batch.py"), "").module == "geartrain.wire.batch"
    assert Source(Path(TEST), "").package == "tests"
