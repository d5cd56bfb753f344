"""Topics: names that go in come out, and no wildcard, level or control character gets in."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.errors import WireError
from geartrain.wire import topics

NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=64)
HOSTILE = [
    "",
    "+",
    "#",
    "a/b",
    "a+",
    "a#",
    "a b",
    "a\n",
    "\n",
    "\0",
    "a\x7f",
    "é",
    "a" * 65,
    "$share",
    "a\u202eb",
]


@given(NAMES, NAMES)
def test_up_topic_is_parsed_back(device: str, flow: str) -> None:
    assert topics.parse_up(topics.up_topic(device, flow)) == (device, flow)


def test_topics_are_as_designed() -> None:
    bucket = f"{zlib.crc32(b'device-1') % 64:02x}"
    assert topics.bucket("device-1") == bucket == "39"
    assert topics.up_topic("device-1", "stocks") == "geartrain/v1/39/device-1/stocks/up"
    assert topics.ack_topic("device-1", "stocks") == "geartrain/v1/39/device-1/stocks/ack"
    assert topics.desired_topic("device-1") == "geartrain/v1/39/device-1/desired"
    assert topics.reported_topic("device-1") == "geartrain/v1/39/device-1/reported"
    assert topics.parse_reported("geartrain/v1/39/device-1/reported") == "device-1"
    assert topics.up_filter() == "geartrain/v1/+/+/+/up"
    assert topics.up_filter("3f") == "geartrain/v1/3f/+/+/up"


@given(NAMES)
def test_there_are_64_buckets(device: str) -> None:
    assert 0 <= int(topics.bucket(device), 16) < 64
    assert len(topics.bucket(device)) == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_refused(name: str) -> None:
    for make in (topics.bucket, topics.desired_topic, topics.reported_topic):
        with pytest.raises(WireError, match="use a name of 1 to 64 letters"):
            make(name)
    for pair in ((name, "stocks"), ("device-1", name)):
        for topic in (topics.up_topic, topics.ack_topic):
            with pytest.raises(WireError, match="use a name of 1 to 64 letters"):
                topic(*pair)
        with pytest.raises(WireError):
            topics.parse_up(f"geartrain/v1/39/{pair[0]}/{pair[1]}/up")


@pytest.mark.parametrize("name", HOSTILE)
def test_error_shows_no_control_character(name: str) -> None:
    with pytest.raises(WireError) as caught:
        topics.bucket(name)
    assert str(caught.value).isprintable()
    with pytest.raises(WireError) as caught:
        topics.parse_up(f"geartrain/v1/39/device-1/{name}/up\n")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "geartrain/v1/39/device-1/stocks/ack",
        "geartrain/v2/39/device-1/stocks/up",
        "geartrain/v1/0F/device-1/stocks/up",
        "geartrain/v1/10/device-1/stocks/up",
        "geartrain/v1/device-1/stocks/up",
        "x/geartrain/v1/39/device-1/stocks/up",
        "geartrain/v1/39/device-1/stocks/up/more",
        "geartrain/v1/39/device-1/stocks/up\n",
    ],
)
def test_other_topic_is_refused(topic: str) -> None:
    with pytest.raises(WireError):
        topics.parse_up(topic)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with pytest.raises(WireError):
        topics.parse_up(text)


@pytest.mark.parametrize("bucket", ["", "40", "0F", "0", "000", "#", "+/+", "39\n"])
def test_filter_of_no_bucket_is_refused(bucket: str) -> None:
    with pytest.raises(WireError, match="use two hexadecimal digits from 00 to 3f"):
        topics.up_filter(bucket)
