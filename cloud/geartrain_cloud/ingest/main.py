"""`gear-ingest --config FILE.toml`: ingest as a process.

Runs ingest on the production ports and turns its end into an exit code. Guarantees: a mistake in the
configuration gives one sentence on stderr and code 2. A log that cannot be read or written gives one
sentence and code 1, and nothing is acked that is not in the log. An ingest that a newer one has replaced
says so and ends with code 3. After SIGTERM or Ctrl-C, ingest commits and acks what it has taken, and ends
with code 0 or 130.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path

import pyarrow as pa

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.service_notes import noted_service
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import ConfigError, FencedError, GeartrainError
from geartrain.printable import printable
from geartrain_cloud.ingest.config import IngestConfig, read_config
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.log.disk import OsDisk
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.opening import shared_log
from geartrain_cloud.log.roster import FollowedRoster
from geartrain_cloud.log.segment import encode_segment, merge_segments

EXIT_OK = 0
EXIT_FAILED = 1
"""The log cannot be kept."""
EXIT_CONFIG = 2
"""The configuration is wrong: a new start does not help."""
EXIT_FENCED = 3
"""Another ingest has taken the log, or a part of it: a new start would take it back from that one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ingest until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gear-ingest", description="Take the batches of devices from the broker into the log."
    )
    parser.add_argument("--config", required=True, metavar="FILE.toml", type=Path, help="log and broker")
    options = parser.parse_args(arguments)
    log_to_stderr()
    without_pandas()
    os.umask(0o077)
    try:
        was_interrupted = asyncio.run(_run(read_config(options.config)))
    except ConfigError as error:
        return _said(error, EXIT_CONFIG)
    except FencedError as error:
        return _said(error, EXIT_FENCED)
    except GeartrainError as error:
        return _said(error, EXIT_FAILED)
    return EXIT_INTERRUPTED if was_interrupted else EXIT_OK


def without_pandas() -> None:
    """Have pyarrow take pandas as not installed.

    Else it would import pandas at its first array, in the middle of the first commit. That takes as long as
    the rest of the start, and ingest has no use for pandas.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])  # looks for pandas, and remembers what came of it
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _said(error: GeartrainError, code: int) -> int:
    sys.stderr.write(f"gear-ingest: {printable(str(error))}\n")
    return code


async def _run(config: IngestConfig) -> bool:
    """Run ingest until a signal; returns whether it was Ctrl-C."""
    disk, broker = OsDisk(config.log), config.broker
    # Answers are small: a puback that is late is lost, and takes one of the few places on the connection.
    net = AiomqttNet(
        broker.host, broker.port, tls_context=broker.tls_context, puback_timeout_s=config.puback_ms / 1_000
    )
    ingest = Ingest(
        config,
        FollowedRoster(config.log),
        SqliteLedger(config.log),
        disk,
        net,
        SystemClock(),
        encode_segment,
        SystemRandomness(),
        merge_segments,
        net.counters,
    )
    try:
        with shared_log(config.log):
            async with noted_service() as notes:
                signals = EndSignals(ingest.stop, notes.stopping)
                await ingest.run()
    finally:
        disk.close()
    return signals.was_interrupted


if __name__ == "__main__":
    sys.exit(main())
