"""What is sealed comes out as it went in, and nothing of it is imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.serializers import CloudPickleSerializer

from geartrain.planning import make_plan
from geartrain_cloud.spark.compile import KEYED, compile_queries
from geartrain_cloud.spark.embedded import EmbeddedFragment
from geartrain_cloud.spark.keyed_stage import KeyedStage
from geartrain_cloud.spark.sealed import Sealed
from tests.spark.flows import sums_flow
from tests.waiting import WAIT_S

_SAYS = """
import sys
from pyspark.serializers import CloudPickleSerializer
stage = CloudPickleSerializer().loads(open(sys.argv[1], "rb").read())
print(type(stage).__name__, "pyarrow" in sys.modules, "geartrain_cloud.spark.embedded" in sys.modules)
fragment = stage._fragment.open()
print(type(fragment).__name__, fragment is stage._fragment.open())
"""


def test_what_is_opened_is_what_was_sealed() -> None:
    base = 40
    sealed = Sealed(lambda number: base + number)
    assert sealed.open()(2) == 42
    carried = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(sealed))  # type: ignore[no-untyped-call]
    again = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(carried))  # type: ignore[no-untyped-call]
    assert carried.open()(2) == again.open()(2) == 42
    assert carried.open() is carried.open()


def test_a_stage_that_is_not_run_imports_nothing_of_the_runtime(tmp_path: Path) -> None:
    queries = {query.name: query for query in compile_queries(make_plan(sums_flow().graph(), "cloud"))}
    stage = KeyedStage(EmbeddedFragment(queries[KEYED], 1, (0, 1)))
    (tmp_path / "stage").write_bytes(CloudPickleSerializer().dumps(stage))  # type: ignore[no-untyped-call]
    asked = [sys.executable, "-c", _SAYS, str(tmp_path / "stage")]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert said.stdout.splitlines() == ["KeyedStage False False", "EmbeddedFragment True"]
