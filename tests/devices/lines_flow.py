"""A flow for each source that devices have: what comes is sent to the cloud as it is."""

from __future__ import annotations

from geartrain import Flow, Record, Table
from geartrain_devices.kafka_topic import KafkaTopic
from geartrain_devices.modbus import ModbusTcp
from geartrain_devices.serial_lines import SerialLines
from geartrain_devices.syslog import Syslog
from geartrain_devices.tail_files import TailFiles


class Line(Record):
    line: str


tail = Flow("tail")
tail.source("lines", TailFiles(), out=Line).at("edge").sink("out", Table("lines"))


class Said(Record):
    message: str
    sender: str


syslog = Flow("syslog")
syslog.source("lines", Syslog(), out=Said).at("edge").sink("out", Table("said"))

serial = Flow("serial")
serial.source("lines", SerialLines(), out=Line).at("edge").sink("out", Table("lines"))


weights = Flow("weights")
weights.source("lines", SerialLines(), out=Line).at("edge").sink("out", Table("lines"))


class Power(Record):
    unit: int
    watts: float


modbus = Flow("modbus")
modbus.source("lines", ModbusTcp(), out=Power).at("edge").sink("out", Table("power"))


class Counted(Record):
    n: int


kafka = Flow("kafka")
kafka.source("lines", KafkaTopic(), out=Counted).at("edge").sink("out", Table("counted"))
