"""A graph with many paths: 2 sources, 5 nodes, 5 sinks and 15 edges between them.

Every node marks the records that pass it, so that each sink shows by which paths its records came.

    gear run geartrain_examples.complexdag.flow:flow --output build/dag
"""

import random
from functools import partial

from geartrain import Flow, Record, Table
from geartrain_devices.simulated import SimulatedSensor


class Parcel(Record):
    """What goes through the graph: where it was born, its number, and the nodes that it has passed."""

    born: str
    number: int
    way: str = ""


class Parcels(SimulatedSensor[Parcel]):
    """Numbered parcels."""

    name: str = ""

    def make(self, random: random.Random, number: int, device: str) -> Parcel:
        """Parcel `number`."""
        return Parcel(self.name, number)


def mark(node: str, parcel: Parcel) -> Parcel:
    """The parcel, after it has passed `node`."""
    return Parcel(parcel.born, parcel.number, parcel.way + node)


def node(name: str) -> partial[Parcel]:
    """The function of a node."""
    return partial(mark, name)


flow = Flow("complexdag")

a = flow.source("a", Parcels(name="a", records=1_000), out=Parcel)
b = flow.source("b", Parcels(name="b", records=1_000, period_ms=700), out=Parcel)

c = a.map(node("c"), name="c", out=Parcel)  # 1
d = a.merge("into_d", b).map(node("d"), name="d", out=Parcel)  # 2, 3
e = b.map(node("e"), name="e", out=Parcel)  # 4
f = c.merge("into_f", d).map(node("f"), name="f", out=Parcel)  # 5, 6
g = d.merge("into_g", e, f).map(node("g"), name="g", out=Parcel)  # 7, 8, 9

c.sink("early", Table("early"))  # 10
e.sink("right", Table("right"))  # 11
f.sink("left", Table("left"))  # 12
g.sink("all", Table("all_ways"))  # 13
f.merge("ends", g).sink("both", Table("both_ends"))  # 14, 15
