"""The demo's last step: `standfast pipeline` over the state of B and its log, in this process.

    state of B, its changelogs ──> inspect, rebuild, verify ──> document
                                                           └──> <folder>/spark: rebuilt stores and report.html

Rules of this file: a missing extra or Java is no fault of the demo: the card says how to turn the step on. Any other
failure fails the demo.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.ops.demo.board import BoardSettings
from standfast.ops.demo.display import Display
from standfast.ops.demo.result import Json
from standfast.ops.demo.worker import state_dir
from standfast.replication.log import Log
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, Unavailable

if TYPE_CHECKING:
    from standfast.ops.tools.java import Java

FOLDER = "spark"
MASTER = "local[2]"
INSTALL = "pip install 'standfast[spark]'"
# In a run of some seconds the second compiler of Java never earns its cost.
SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def run_spark(
    folder: Path, log: Log, settings: BoardSettings, display: Display, clock: Clock
) -> tuple[Json | None, str]:
    """The run, or None and a hint how to enable it."""
    # PySpark is an extra of 0.8 GB: without it the demo is as good as before.
    if find_spec("pyspark") is None:
        return None, INSTALL
    from standfast.ops.tools.spark_java import spark_java
    from standfast.restore.spark.session import check_libraries

    try:
        check_libraries(report=True)
        java = spark_java(display.event)
    except (BadConfig, Unavailable) as error:
        # The card has one line for it.
        return None, str(error).partition("\n")[0]
    return _run(folder, log, settings, display, clock, java), ""


def _run(folder: Path, log: Log, settings: BoardSettings, display: Display, clock: Clock, java: Java) -> Json:
    from standfast.ops.cli.spark.pipeline import run_and_report
    from standfast.restore.spark.folder import Folder
    from standfast.restore.spark.pipeline import jobs_of_state
    from standfast.restore.spark.places import Place
    from standfast.restore.spark.session import SparkPlace, session
    from standfast.restore.verify.at_rest import find_tasks

    state, began_ms = state_dir(folder, "b"), clock.monotonic_ms()
    places = [Place(one.app, one.task, str(one.path)) for one in find_tasks(state, settings.app)]
    jobs = jobs_of_state(log, places)
    display.at(0.0, "starting")
    place = SparkPlace(MASTER, java.home, java.major, settings=SETTINGS)
    with session("standfast demo", place) as spark:
        started_ms = clock.monotonic_ms() - began_ms
        about = {"looked_at": "state", "state": str(state), "source": "native"}
        out = Folder(str(folder / FOLDER))
        _, summary = run_and_report(spark, log, jobs, out, display, about)
    stores = summary["stores"]
    rebuilt = [one["rebuilt"] for one in stores if one["rebuilt"] is not None]
    display.event(
        f"Spark inspected, rebuilt and verified {len(stores)} stores: {summary['rows']:,} rows equal, "
        f"{summary['differences']} differences"
    )
    same = sum(len(one["same_position"]) - len(one["rebuilt_differs"]) for one in stores)
    return {name: summary[name] for name in ("verdict", "records", "rows", "differences", "elapsed_ms")} | {
        "version": f"Spark {summary['spark']}",
        "stores": len(stores),
        "rebuilt": sum(len(job.stored) for job in jobs),  # partitions of stores, of which `same` have the live digest
        "same_digest": same,
        "rebuilt_rows": sum(one["rows"] for one in rebuilt),
        "rebuilt_bytes": sum(one["bytes"] for one in rebuilt),
        "started_ms": started_ms,
        "report": f"{out.address}/report.html",
    }
