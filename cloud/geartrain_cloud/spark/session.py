"""The Spark session: one JVM with the settings that make results exact and the console quiet.

It starts before any query. Guarantees: session time is UTC. Spark's own messages go to a log file, none to
the console. Its Python workers are this interpreter and find the modules that this process finds. The JVM
ends with this process.
"""

from __future__ import annotations

import locale
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from geartrain.adapters.files import write_private
from geartrain.adapters.temporary import temporary_folder
from geartrain_cloud.bounded_log import bound_log
from geartrain_cloud.platform.places import SPARK_LOG_FILE
from geartrain_cloud.spark.columns import LogColumns
from geartrain_cloud.spark.java import ensure_java
from geartrain_cloud.spark.worker_python import worker_python

TASK_FAILURES_MAX = 4
"""So often a task of a micro-batch may fail before its query stops: Spark's own figure for a cluster."""

_LOGGING = """\
status = warn
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
# It warns of every bucket of state that is not there yet.
logger.state.name = org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer
logger.state.level = error
"""

_STREAMING = "spark.sql.streaming"
_ALONE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Of a local master: nobody else has to reach it. A cluster's executors must reach the driver where it is.
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch then writes what it changed and not the whole of its state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Hadoop has a umask of its own: without this, what lies below the checkpoint's folder is for all to read.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    # Without .crc files; setting fs.file.impl as well would crash RocksDB's state stores.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # The clock comes with the positions, so there is nothing to do where these have not moved.
    f"{_STREAMING}.noDataMicroBatches.enabled": "false",
    # Asking the log for news opens the ledger: ten times a second is often enough.
    f"{_STREAMING}.pollingDelay": "100ms",
    f"{_STREAMING}.stopTimeout": "120s",
    f"{_STREAMING}.numRecentProgressUpdates": "200",
    # A worker that is forked from one which has imported everything begins at once.
    "spark.python.daemon.module": "geartrain_cloud.spark.worker_daemon",
    # A row of ours holds thousands of records: few of them make a batch between Java and Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32",
}


def session_settings(cores: int) -> dict[str, str]:
    """Spark's settings for a master with `cores` cores."""
    return _SETTINGS | {"spark.sql.shuffle.partitions": str(cores)}


def open_session(
    master: str,
    folder: Path,
    settings: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    queries: int = 1,
) -> SparkSession:
    """Start a JVM and a session, 9 to 17 s on two cores, with `LogColumns` registered.

    master: as for Spark; folder: for its log, `spark.log`, and scratch files; settings: over
    `session_settings`; pass_fds: file descriptors that the JVM holds open as well, such as that of a lock;
    queries: so many may run beside each other on a local master. The log is bounded here; whoever keeps the
    session calls `bound_log` on it again and again.

    Each of them has places for as many tasks as there are cores: one that hangs takes none from another.
    Raises `JavaError` where there is no Java, and pyspark's errors where the session cannot start.
    """
    folder, is_local = folder.absolute(), master.startswith("local")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = _python_path()
    if locale.getencoding().lower().replace("-", "") != "utf8":
        os.environ["LC_ALL"] = "C.UTF-8"  # or Java finds no file whose path has other letters than ASCII
    home = ensure_java(worker_python(folder, os.environ["PYTHONPATH"]) if is_local else None)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings_file = folder / "log4j2.properties"
    write_private(settings_file, _LOGGING.format(file=_escaped(folder / SPARK_LOG_FILE)))
    conf = SparkConf().setMaster(_with_retries(master, queries)).setAppName("geartrain")
    ours = _ALONE if is_local else {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    for key, value in (session_settings(_cores(master)) | ours | dict(settings or {})).items():
        conf.set(key, value)
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    # What is asked for comes last, where Java takes it over ours.
    asked = conf.get("spark.driver.extraJavaOptions", "")
    conf.set("spark.driver.extraJavaOptions", f"{_java_options(master, settings_file, home.version)} {asked}")
    bound_log(folder / SPARK_LOG_FILE)
    descriptor = os.open(folder / SPARK_LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        streams = {"stdout": descriptor, "stderr": descriptor, "pass_fds": tuple(pass_fds)}
        gateway = launch_gateway(conf, popen_kwargs=streams)  # type: ignore[no-untyped-call]
    finally:
        os.close(descriptor)
    _divert_python_logs(folder / SPARK_LOG_FILE)
    on_interrupt = signal.getsignal(signal.SIGINT)
    session = SparkSession(SparkContext(gateway=gateway, conf=conf))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_interrupt)  # SparkContext has put its own in the place of ours
    session.dataSource.register(LogColumns)
    return session


def _divert_python_logs(path: Path) -> None:
    """What the bridge to the JVM says goes where Spark's words go: a stop in mid-run makes it log traces."""
    logger = logging.getLogger("py4j")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False


def _java_options(master: str, settings_file: Path, version: int) -> str:
    options = [f'"-Dlog4j2.configurationFile={settings_file.as_uri()}"', "-Duser.timezone=UTC"]
    if master.startswith("local"):
        # Java knows no TMPDIR: it would take /tmp, which a container may have for reading alone.
        options.append(f'"-Djava.io.tmpdir={temporary_folder()}"')
        # The work is done in Python: a JVM that compiles less and collects on one thread needs a third less
        # of two cores for a run of half a minute, and is no slower later.
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    if version >= 24:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return " ".join(options)


def _cores(master: str) -> int:
    """The cores of a local master, else 8."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if found is None:
        return 8
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


def _with_retries(master: str, queries: int = 1) -> str:
    """A local master runs a task again whose Python worker died, as often as a cluster's does."""
    if re.fullmatch(r"local(?:\[(\d+|\*)\])?", master) is None:
        return master
    places = _cores(master) * queries if queries > 1 else master.partition("[")[2].rstrip("]") or 1
    return f"local[{places},{TASK_FAILURES_MAX}]"


def _python_path() -> str:
    """This process's module path, so that the workers can import what it can: a user's flow beside it too."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(Path(path).absolute()) for path in [*sys.path, *(p for p in before if p)]]
    return os.pathsep.join(dict.fromkeys(paths))


def _escaped(path: Path) -> str:
    """A path as a value in a properties file, where log4j would also expand ${...}."""
    return str(path).replace("\\", "\\\\").replace("${", "$${")
