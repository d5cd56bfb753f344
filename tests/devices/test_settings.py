"""Options with which no device could open a source are refused before anything is read or looked at."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from geartrain import Flow, Record, Source, Table
from geartrain.errors import SourceError
from geartrain.operators.source import check_sources
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory, JsonLinesDirectory
from geartrain_devices.http_poll import HttpPoll
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.kafka_topic import KafkaTopic
from geartrain_devices.modbus import ModbusTcp
from geartrain_devices.mqtt_topic import MqttTopic
from geartrain_devices.postgres_query import PostgresQuery
from geartrain_devices.serial_lines import SerialLines
from geartrain_devices.syslog import Syslog
from geartrain_devices.tail_files import TailFiles


class Reading(Record):
    at: datetime
    value: float


def check(source: Source[Any]) -> None:
    flow = Flow("readings")
    flow.source("meter", source, out=Reading).sink("out", Table("readings"))
    check_sources(flow.graph())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (CsvReplay(path="", time_column="at", delimiter=";;"), "delimiter = ';;' must be one character"),
        (
            CsvDirectory(path="/none", time_column="at", time_zone="Nowhere/None"),
            "the time zone database has no zone 'Nowhere/None'",
        ),
        (JsonLinesDirectory(path="/none", pattern="a/*"), "pattern = 'a/\\*' must be of names"),
        (JsonLines(path="", encoding="utf-99"), "encoding = 'utf-99'"),
        (JsonLines(path="", fields={"speed": "v"}), "there is no field 'speed'; its fields: at, value"),
        (HttpPoll(url="http://a:b/"), "url = 'http://a:b/' is no address"),
        (HttpPoll(proxy="none.example"), "proxy = 'none.example' is no address of a proxy"),
        (KafkaTopic(brokers="b:none"), "brokers = 'b:none': 'b:none' is no address of a broker"),
        (
            KafkaTopic(properties={"enable.auto.commit": "x"}),
            "enable.auto.commit is for the source to",
        ),
        (MqttTopic(topic="a+"), "topic = 'a\\+' is no topic filter: \\+ is a whole level"),
        (MqttTopic(time_unit="h"), "time_unit = 'h' must be one of"),
        (ModbusTcp(registers={"value": "holding -1 float32"}), "is no register"),
        (ModbusTcp(registers={"speed": "holding 1 float32"}), "there is no field 'speed'"),
        (PostgresQuery(time_unit="h"), "time_unit = 'h' must be one of"),
        (SerialLines(pattern="a("), "is no regular expression at its character 2"),
        (SerialLines(frame="<Qz", begin="aa"), "frame = '<Qz' is no layout"),
        (Syslog(udp=514, encoding="utf-99"), "encoding = 'utf-99'"),
        (TailFiles(path="/none", rotated="a/b"), "rotated = 'a/b' must be of names"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Source) else "",
)
def test_an_option_that_cannot_be_is_named(source: Source[Any], says: str) -> None:
    with pytest.raises(SourceError, match=f"^source meter: .*{says}"):
        check(source)


def test_what_may_be_set_on_the_device_may_be_missing() -> None:
    kinds: list[type[Source[Any]]] = [HttpPoll, KafkaTopic, MqttTopic, ModbusTcp, PostgresQuery, SerialLines]
    for kind in (*kinds, Syslog, TailFiles):
        check(kind())
    with pytest.raises(SourceError, match="is no regular expression"):
        check(TailFiles(pattern="["))
