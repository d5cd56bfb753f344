"""The agent on a device: sources, then the flow's edge fragment, then the durable spool and its uplink."""

import gc

from geartrain_edge.lazy_import import load_later

# Python looks for garbage after each 700 new objects: fifty times while all this is imported, and several
# times a batch of thousands of records, in vain, since neither makes much of it.
gc.set_threshold(10_000)
# paho looks for proxies there, which it does only with PySocks installed: 1.3 MB that no agent has a use for.
load_later("urllib.request")
# protobuf in Python, with its text format, which protobuf in C does not ask for anything.
load_later("google.protobuf.internal.python_message")
