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
from standfast.ops.demo.result import Json
from standfast.ops.demo.worker import state_dir
from standfast.ops.shared.output import Output
from standfast.replication.log import Log
from standfast.store.errors import BadConfig, Unavailable

if TYPE_CHECKING:
    from standfast.ops.tools.java import Java

FOLDER = "spark"
MASTER = "local[2]"
INSTALL = "pip install 'standfast[spark]'"
# In a run of some seconds the second compiler of Java never earns its cost.
SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def run_spark(folder: Path, log: Log, settings: BoardSettings, out: Output) -> tuple[Json | None, str]:
    """The run, or None and a hint how to enable it."""
    # PySpark is an extra of 0.8 GB: without it the demo is as good as before.
    if find_spec("pyspark") is None:
        return None, INSTALL
    from standfast.ops.tools.spark_java import spark_java
    from standfast.restore.spark.session import check_libraries

    try:
        check_libraries(report=True)
        java = spark_java(out.note)
    except (BadConfig, Unavailable) as error:
        # The card has one line for it.
        return None, str(error).partition("\n")[0]
    return _run(folder, log, settings, out, java), ""


def _run(folder: Path, log: Log, settings: BoardSettings, out: Output, java: Java) -> Json:
    from standfast.ops.cli.spark.pipeline import run_and_report, steps_shown
    from standfast.restore.spark.folder import Folder
    from standfast.restore.spark.pipeline import jobs_of_state
    from standfast.restore.spark.places import TaskPlace
    from standfast.restore.spark.session import SparkPlace, session
    from standfast.restore.verify.at_rest import find_tasks

    state = state_dir(folder, "b")
    places = [TaskPlace(one.app, one.task, str(one.path)) for one in find_tasks(state, settings.app)]
    jobs = jobs_of_state(log, places)
    place = SparkPlace(MASTER, java.home, java.major, settings=SETTINGS)
    report, about = Folder(str(folder / FOLDER)), {"looked_at": "state", "state": str(state), "source": "native"}
    with session("standfast demo", place) as spark, steps_shown(out) as steps:
        _, summary = run_and_report(spark, log, jobs, report, steps, about)
    stores = summary["stores"]
    return {name: summary[name] for name in ("verdict", "records", "rows", "differences", "elapsed_ms")} | {
        "version": f"Spark {summary['spark']}",
        "stores": len(stores),
        # Partitions of stores; `same_digest`: of them those that have the digest of the live rows.
        "rebuilt": sum(len(job.stored) for job in jobs),
        "same_digest": sum(len(one["same_position"]) - len(one["rebuilt_differs"]) for one in stores),
        "report": f"{report.address}/report.html",
    }
