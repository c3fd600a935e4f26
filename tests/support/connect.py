"""A Spark Connect server in a process of its own, for the tests of one module.

    with connect_server(folder) as address: ...     sc://127.0.0.1:PORT

Rules of this file: the server that comes with pyspark, on loopback, local[2]; it ends with the block.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = re.compile(r"Spark Connect server started at: \S*:([0-9]+)")
START_S = 180.0


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a server; its log goes to `folder`."""
    import pyspark

    from standfast.ops.tools.java import ensure_java

    said = folder / "connect.log"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    words = [f"{pyspark.__path__[0]}/bin/spark-submit", "--class", SERVER, "--master", "local[2]"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    more = {"JAVA_HOME": str(ensure_java(print).home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with said.open("w") as out:
        server = subprocess.Popen(
            words, stdout=out, stderr=out, cwd=folder, env={**os.environ, **more}, start_new_session=True
        )
    try:
        yield f"sc://127.0.0.1:{_port(server, said)}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _port(server: subprocess.Popen[bytes], said: Path) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = STARTED.search(said.read_text())
        if found is not None:
            return int(found[1])
        assert server.poll() is None, said.read_text()[-2_000:]
        time.sleep(0.2)
    raise AssertionError(f"no server within {START_S} s: {said.read_text()[-2_000:]}")
