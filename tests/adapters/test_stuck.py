"""What is said of a step that does not come back: where it is, and once."""

from __future__ import annotations

import json
import sys
import threading

from geartrain.adapters.stuck import StuckWatch, place_of
from tests.waiting import WAIT_S


def stays_until(over: threading.Event) -> None:
    assert over.wait(WAIT_S)


def test_a_call_that_does_not_come_back_is_named_with_its_line() -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    with StuckWatch({"tests"}, say, after_s=0.1, step=lambda: "slow"):
        stays_until(heard)
    line = stays_until.__code__.co_firstlineno + 1
    assert said[0] == f"for 0.1 s step 'slow' has not come back from stays_until ({__file__}, line {line})"
    assert len(said) == 1  # for one beat it is said once


def test_no_more_is_said_than_the_bound() -> None:
    said: list[str] = []
    heard, over = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    with StuckWatch({"tests"}, say, after_s=0.1, times_max=1) as watch:
        stays_until(heard)
        watch.beat()  # from here on it would be said again
        threading.Timer(0.4, over.set).start()
        stays_until(over)
    assert len(said) == 1


def test_who_waits_for_input_is_not_named() -> None:
    """No code of a user is on such a stack: only that of Python's own modules and of Geartrain."""
    over = threading.Event()
    waits = threading.Thread(target=over.wait, args=(WAIT_S,), daemon=True)
    waits.start()
    assert waits.ident is not None
    assert place_of(sys._current_frames().get(waits.ident), {"tests"}) == ""
    over.set()
    waits.join()


def test_a_package_that_is_installed_is_the_users_where_the_flow_is_in_it() -> None:
    found: list[str] = []
    json.dumps(object(), default=lambda _: found.append(place_of(sys._getframe(1), {"json"})))
    assert found[0].startswith("default (") or found[0].startswith("encode (") or "json" in found[0]
