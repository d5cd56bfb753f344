"""The broker between agents and ingest: which program it is, how it is started, and when it is ready.

Nothing in the record's path relies on what a broker promises (I3): it may lose, double, delay or reorder.
"""

from geartrain_cloud.broker.choice import BROKERS, BrokerChoice, choose_broker, find_mosquitto
from geartrain_cloud.broker.ready import free_port, is_ready, wait_until_ready

__all__ = [
    "BROKERS",
    "BrokerChoice",
    "choose_broker",
    "find_mosquitto",
    "free_port",
    "is_ready",
    "wait_until_ready",
]
