"""Versions of one flow's code: some work, and some do harm in one way each.

Steps and types are equal, but for one step more where that is asked for.
"""

from __future__ import annotations

from geartrain.bundle import pack

_FLOW = '''
"""A cold room: readings, checked by a function, to a table."""
import os, time
from geartrain import Flow, Record, Table
from geartrain_devices.simulated import SimulatedSensor

{top}

class Reading(Record):
    celsius: float

class Thermometer(SimulatedSensor[Reading]):
    def make(self, random, number, device):
        return Reading(float(number))

COUNT = [0]
HOARD = []

def checked(reading):
    COUNT[0] += 1
    {body}
    return reading

flow = Flow("coldroom")
readings = flow.source("readings", Thermometer(period_ms=1000, speed=20.0), out=Reading)
readings.map(checked, out=Reading).sink("levels", Table("levels"))
'''

BODIES = {
    "good": ("", "pass"),
    "better": ("", "COUNT[0] += 0"),
    "raises": ('raise RuntimeError("no such sensor")', "pass"),
    "exits": ("", "os._exit(7)"),
    "hangs": ("", "time.sleep(3_600)"),
    "hangs later": ("", "while COUNT[0] > 30: pass"),
    "exits as for a mistake": ("", "COUNT[0] > 30 and os._exit(2)"),
    "exits as for an alarm": ("", "COUNT[0] > 30 and os._exit(3)"),
    "exits as for what heals": ("", "COUNT[0] > 30 and os._exit(1)"),
    "exits at once": ("", "os._exit(1)"),
    "leaks": ("", 'HOARD.append(b"x" * (400 << 20)); time.sleep(3_600)'),
    "imports forever": ("time.sleep(3_600)", "pass"),
    "later": ("", "COUNT[0] > 30 and os._exit(7)"),
}


MORE = 'readings.filter(lambda reading: True, name="all").sink("more", Table("more"))\n'


def bundle(kind: str, *, has_more: bool = False) -> tuple[str, bytes]:
    """The code's hash, and the archive; has_more: its flow has one step more on the device."""
    top, body = BODIES[kind]
    text = (_FLOW.format(top=top, body=body) + (MORE if has_more else "")).encode()
    files = {"coldroom/__init__.py": b"", "coldroom/flow.py": text.lstrip()}
    manifest, archive = pack(files)
    return manifest.code, archive
