"""Questions over REST to a real gear-control, with a host that answers as the test has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from geartrain_cloud.control.questions import Turns
from geartrain_cloud.hosting.questions import (
    EXPIRES_S,
    Answer,
    BatchFolder,
    Question,
    QuestionFolder,
    merged,
)
from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import Client, control_process
from tests.waiting import Wait

STOCKS = "geartrain_examples.stocks.flow:flow"
TOLD = {"state": {"count": 1}, "windows": [], "timers": [5], "forgets_us": None}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def client(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        for name, cut in (("stocks", "cloud"), ("edgy", "edge")):
            body = {"name": name, "flow": STOCKS, "cut": cut, "set": {"quotes.path": "p.csv"}}
            one.ask("POST", "/apps", body, expect=202)
        yield one


@contextmanager
def host(state: Path, answer: Callable[[Question], Answer | None]) -> Iterator[list[Question]]:
    """Answers what is asked; yields the questions."""
    folder, over = QuestionFolder(PlatformPlaces(state).questions), threading.Event()
    seen: dict[str, Question] = {}

    def run() -> None:
        while not over.wait(0.01):
            for name in folder.asked() - seen.keys():
                question = folder.read(name)
                if question is not None:
                    seen[name] = question
                    found = answer(question)
                    if found is not None:
                        folder.answer(found)

    thread = threading.Thread(target=run)
    thread.start()
    found: list[Question] = []
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found += seen.values()


def is_empty(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if path.is_file()]


def test_an_answer_is_handed_on_and_its_files_go(client: Client, state: Path) -> None:
    def answer(question: Question) -> Answer:
        place = {"0": 7}
        return Answer(question.id, place, {"quotes": 9}, 9, key=question.key, found=True, told=TOLD)

    with host(state, answer) as asked:
        found = client.get("/apps/stocks/steps/drawdown/state?key=IBM")
        client.get("/apps/stocks/steps/drawdown/state")
    assert [(one.flow, one.step, one.key) for one in asked] == [
        ("stocks.1", "drawdown", "IBM"),
        ("stocks.1", "drawdown", None),
    ]
    assert found.pop("answered_us") > 0
    where = {"app": "stocks", "instance": "stocks.1", "run": 1, "step": "drawdown", "key": "IBM"}
    told = {"found": True, "state": {"count": 1}, "windows": [], "timers_us": [5], "forgets_us": None}
    place = {"keys": [], "clock_us": 9, "clocks": {"quotes": 9}, "positions": {"0": 7}}
    assert found == where | told | place
    assert is_empty(PlatformPlaces(state).questions)


def test_what_cannot_be_answered_is_one_sentence(client: Client, state: Path) -> None:
    with host(state, lambda question: Answer(question.id, refused="it is starting")) as asked:
        path = "/apps/stocks/steps/drawdown/state"
        assert client.refusal("GET", path) == (409, "unanswered", "it is starting")
        status, code, sentence = client.refusal("GET", "/apps/stocks/steps/drawn/state?key=a")
        assert (status, code) == (404, "not_found")
        assert sentence.startswith("app stocks has no step 'drawn'; those with a state: ")
        assert "drawdown" in sentence
        edgy = "/apps/edgy/steps/drawdown/state?key=a"
        assert client.refusal("GET", edgy) == (409, "unanswered", "app edgy runs on no device yet")
        client.ask("POST", "/devices", {"name": "s1"}, expect=201)
        status, code, sentence = client.refusal("GET", edgy)
        assert (status, code, sentence) == (
            503,
            "unavailable",
            "devices cannot be asked: the broker is away",
        )
        said = client.refusal("GET", f"{edgy}&device=s2")[2]
        assert said == "app edgy does not run on device 's2': see gear info"
        assert client.refusal("GET", f"{path}?device=s1")[2] == (
            "device: step 'drawdown' runs in the data centre, and no device is asked"
        )
        assert client.refusal("GET", "/apps/none/steps/drawdown/state")[0] == 404
        assert client.refusal("GET", f"{path}?wait_s=51")[:2] == (400, "invalid")
        assert client.refusal("GET", f"{path}?key={'k' * 1_001}")[:2] == (400, "invalid")
        assert client.refusal("GET", f"{path}?of=a")[0] == 400
    assert len(asked) == 1
    status, code, sentence = client.refusal("GET", f"{path}?wait_s=1")
    assert (status, code) == (409, "unanswered")
    assert sentence == "no micro-batch has answered within 1 s: see gear info stocks, and ask again"
    assert is_empty(PlatformPlaces(state).questions)


def test_an_app_is_asked_ten_times_a_second() -> None:
    now_s = 0.0
    turns = Turns(lambda: now_s)
    assert [turns.take("stocks.1") for _ in range(12)] == [True] * 10 + [False] * 2
    assert turns.take("doors.1")
    now_s = 0.9
    assert not turns.take("stocks.1")
    now_s = 1.0
    assert [turns.take("stocks.1") for _ in range(11)] == [True] * 10 + [False]
    for number in range(5_000):
        now_s += 0.01
        assert turns.take(f"app.{number}")
    assert len(turns) <= 1_100


def test_who_asks_too_much_is_told(client: Client, state: Path) -> None:
    path = "/api/v1/apps/stocks/steps/drawdown/state?key=a&wait_s=1"
    wait, found = Wait("an answer that it is too many"), b""
    with host(state, lambda question: Answer(question.id)), ThreadPoolExecutor(20) as pool:
        while b"too_many" not in found:
            wait.check()
            found = b"".join(body for _, _, body in pool.map(lambda _: client.raw("GET", path), range(20)))
    assert b"app stocks is asked 10 times a second at the most" in found


def test_an_app_that_has_ended_has_no_state(client: Client) -> None:
    client.ask("POST", "/apps/edgy/kill", {"mode": "now"}, expect=202)
    wait = Wait("an app to end")
    while client.get("/apps/edgy")["state"] != "ended":
        wait.check()
    assert client.refusal("GET", "/apps/edgy/steps/drawdown/state")[2].startswith(
        "app edgy has ended, and its state with it"
    )


def test_the_first_answer_stays_and_what_expires_goes(tmp_path: Path) -> None:
    folder = QuestionFolder(tmp_path / "questions")
    folder.ask(Question("q", "stocks.1", "drawdown", "a"))
    first = Answer("q", {"0": 1}, found=True)
    for answer in (first, Answer("q", {"0": 2}), Answer("nobody", {"0": 2})):
        folder.answer(answer)
    assert folder.answered("q") == first
    assert folder.answered("nobody") is None
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {0o600}
    folder.sweep()
    assert folder.answered("q") == first
    folder.sweep(time.time() + EXPIRES_S + 1)
    assert is_empty(tmp_path)
    folder.answer(first)
    assert folder.answered("q") is None


def test_a_micro_batch_takes_what_was_asked_since_the_one_before(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "batch")
    assert folder.newest(5) == 5
    one, two, three = (Question(name, "stocks.1", "drawdown") for name in ("a", "b", "c"))
    folder.put(7, {"stocks.1~1": [one]})
    folder.put(8, {"stocks.1~1": [two], "doors.1~1": [three]})
    (tmp_path / "batch" / "lost+found").write_bytes(b"")  # of somebody else
    assert folder.newest(5) == 8
    assert folder.between(5, 8) == {"stocks.1~1": [one, two], "doors.1~1": [three]}
    assert folder.between(7, 8) == {"stocks.1~1": [two], "doors.1~1": [three]}
    folder.forget(7)
    assert (folder.between(5, 8), folder.newest(8)) == (folder.between(7, 8), 8)


def test_of_several_shards_the_one_that_has_the_key_answers() -> None:
    missing, found = Answer("a", key="x"), Answer("a", key=7, found=True)
    keys = [Answer("b", keys=["x"], found=True), Answer("b"), Answer("b", keys=[7], found=True)]
    assert merged([missing, *keys, found]) == [found, Answer("b", keys=["x", 7], found=True)]
    untold = Answer(missing.id, refused="its state cannot be told")
    assert merged([missing, untold]) == merged([untold, missing]) == [untold]
