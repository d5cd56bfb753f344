"""How long tests wait for what must come: so long that a busy machine is slow, and not wrong.

It stands beside the record's path, with all tests that start real processes. Guarantees: a wait costs nothing
where all is well, since whoever waits goes on as soon as the thing is there.
"""

from __future__ import annotations

WAIT_S = 900.0
