"""A Spark session for the jobs of this package: local or on any cluster, quiet, with errors that say what to do.

    open_session(...)    the existing session (spark-submit), or a new one
        scratch folder   log4j2.properties, output of the Java process, local files; removed by close_session
        sc://host:port   a server of Spark Connect, which has its own Java, jars, settings and executors
    check_executors      one tiny task for each executor: rocksdict and standfast must be importable there

Rules of this file: settings and their errors only; it must not know of stores or logs. The caller finds Java and jars.
Nothing is printed: Spark's output during its start goes to a file, and the last lines into the error if the start
fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from standfast.store.errors import BadConfig, Unavailable
from standfast.store.names import few

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"
INSTALL = "pip install 'standfast[spark]'"
INSTALL_CONNECT = "pip install 'standfast[connect]'"
JAVA_MAJORS = (17, 21)  # the versions that Spark 4 is built and tested for
SPARK_RELEASE = "4.0."
STDERR_LINES = 15
PROBES_MAX = 64
CONNECT_PROBES = 4  # a server of Spark Connect does not say how many executors it has
CONNECT_PORT = 15002
CONNECT_S = 10.0
CONNECT_LIBRARIES = ("grpc", "grpc_status", "google.protobuf", "google.rpc")
BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20
ARTIFACTS = Path("artifacts")  # Spark's folder for files that users add to a session, relative to the start folder
LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""

# Settings that our jobs depend on; a caller's own settings win over DEFAULTS only.
FIXED = {
    "spark.sql.session.timeZone": "UTC",  # the connector's timestamps are in the session's zone
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
}
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # Only some of Spark's operators bound a batch to Python by bytes, all by rows: see `batch_rows`.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.python.worker.reuse": "true",
}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Master, Java, jars and settings of a session.

    `master` None: spark-submit's, else local[*]. `java_home` None: Spark looks for a Java itself; `java_major` is for
    errors only (0: unknown). `jars` are paths, `packages` Maven coordinates, `settings` win over our defaults.
    """

    master: str | None = None
    java_home: Path | None = None
    java_major: int = 0
    jars: Sequence[str] = ()
    packages: Sequence[str] = ()
    excludes: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether all processes run on this machine; False if spark-submit decides the master."""
        if (self.master is None and submitted()) or remote_address(self.master) is not None:
            return False
        return (self.master or MASTER_DEFAULT).startswith("local")


def submitted() -> bool:
    """Whether spark-submit started this process and set its master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def remote_address(master: str | None = None) -> str | None:
    """The requested server of Spark Connect, `sc://host:port/...`, or None; BadConfig beside another master."""
    from_variable = os.environ.get("SPARK_REMOTE") or None
    if master is None or submitted():
        return from_variable
    if master.startswith("sc://"):
        return master
    if from_variable:
        raise BadConfig(
            [f"SPARK_REMOTE={_shown(from_variable)} and --master {master} name two places: leave one of them out"]
        )
    return None


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: it has no sparkContext, and its Java is another machine's."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Estimated number of tasks that run at once."""
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", None) or CONNECT_PROBES)
    return max(int(spark.sparkContext.defaultParallelism), 1)


def check_libraries(*, report: bool = False) -> None:
    """Raise BadConfig, with its repair, for a missing or unfit library of the extra.

    `report`: a report will be written, which needs the templates' library.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    for name in ("pyspark", "pyarrow", "pandas"):
        try:
            found[name] = str(import_module(name).__version__)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name:
                raise
            missing.append(name)
    if report and find_spec("jinja2") is None:
        missing.append("jinja2")
    if missing:
        raise BadConfig([f"this runs on Spark and needs {few(missing)}, not installed here: {INSTALL}"])
    problems = library_problems(found)
    if problems:
        raise BadConfig(problems)


def library_problems(versions: Mapping[str, str]) -> list[str]:
    """Problems with these versions of pyspark, pyarrow and pandas, each with its repair."""
    major = {name: int(version.partition(".")[0]) for name, version in versions.items()}
    problems = []
    # The only tested release; data sources in Python change from one release to the next.
    if not versions.get("pyspark", SPARK_RELEASE).startswith(SPARK_RELEASE):
        problems.append(f"pyspark {versions['pyspark']} is not supported: pip install 'pyspark>=4.0,<4.1'")
    if major.get("pandas", 2) > 2:
        problems.append(f"pandas {versions['pandas']} does not work with Spark 4: pip install 'pandas>=2.2,<3'")
    if major.get("pyarrow", 18) < 18:
        problems.append(f"pyarrow {versions['pyarrow']} is too old: pip install 'pyarrow>=18'")
    return problems


def open_session(name: str, place: SparkPlace) -> SparkSession:
    """A session. Raises BadConfig for settings that cannot work, Unavailable if Spark does not start."""
    check_libraries()
    address = remote_address(place.master)
    if address is not None:
        return _connect(name, address, place)
    if place.java_major and place.java_major < JAVA_MAJORS[0]:
        raise BadConfig([_wrong_java(place.java_major)])
    from pyspark.sql import SparkSession

    scratch = Path(tempfile.mkdtemp(prefix="standfast-spark-"))
    _set_environment(place)
    builder: Any = SparkSession.builder.appName(name)
    for key, value in _settings(place, scratch).items():
        builder = builder.config(key, value)
    said = scratch / "stderr"
    littered = set(ARTIFACTS.glob("*")) if ARTIFACTS.exists() else None
    try:
        # Ivy's report is long: it is shown only if the start fails.
        with _stderr_to(said):
            session: SparkSession = builder.getOrCreate()
    except Exception as error:
        lines = _last_lines(said)
        shutil.rmtree(scratch, ignore_errors=True)
        raise _not_started(error, lines, place) from error
    for key, value in FIXED.items():  # an existing session has its own values
        session.conf.set(key, value)
    _OPENED[id(session)] = (scratch, littered)
    return session


def _connect(name: str, address: str, place: SparkPlace) -> SparkSession:
    """A session on a server of Spark Connect; settings that are fixed at Spark's start are the server's."""
    missing = [library for library in CONNECT_LIBRARIES if not _importable(library)]
    if missing:
        raise BadConfig([f"Spark Connect needs {few(missing)}, not installed here: {INSTALL_CONNECT}"])
    if place.jars or place.packages:
        raise BadConfig(
            [f"{_shown(address)}: a server of Spark Connect has its own jars: start it with those of the connector"]
        )
    _refuse_unreachable(address)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.builder.remote(address).appName(name).getOrCreate()
        for key, value in (DEFAULTS | FIXED).items():
            if session.conf.isModifiable(key):  # the others are fixed at the server's start
                session.conf.set(key, value)
    except Exception as error:
        raise Unavailable(f"no session of Spark Connect at {_shown(address)}: {first_line(error)}") from error
    for key, value in place.settings.items():
        try:
            if key not in FIXED:
                session.conf.set(key, value)
        except PySparkException as error:
            session.stop()
            told = f"--conf {key}: a server of Spark Connect takes settings of a session only: {first_line(error)}"
            raise BadConfig([told]) from error
    return session


def _shown(address: str) -> str:
    """The address without its parameters, one of which may be a token."""
    return address.partition(";")[0]


def _refuse_unreachable(address: str) -> None:
    """Raise Unavailable for a server that does not answer: the client itself would try for ten minutes."""
    where = urlsplit(_shown(address))
    try:
        socket.create_connection((where.hostname or "localhost", where.port or CONNECT_PORT), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"no server of Spark Connect answers at {_shown(address)} ({error}): start it, or name it with SPARK_REMOTE"
        ) from error


def _importable(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def close_session(session: SparkSession) -> None:
    """Stop a session and remove its scratch folder."""
    scratch, littered = _OPENED.pop(id(session), (None, None))
    session.stop()
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
        _tidy(littered)


@contextlib.contextmanager
def session(name: str, place: SparkPlace) -> Iterator[SparkSession]:
    """`open_session`, closed at the end."""
    opened = open_session(name, place)
    try:
        yield opened
    finally:
        close_session(opened)


def check_executors(spark: SparkSession, needed: Sequence[str] = ("standfast", "rocksdict", "confluent_kafka")) -> None:
    """Raise BadConfig if an executor lacks a library, or has another Python than the driver."""
    from pyspark.errors import PySparkException

    count = min(parallelism(spark), PROBES_MAX)
    wanted = list(needed)

    def probe(batches: Iterable[Any]) -> Iterator[Any]:
        # A function within a function is sent by value, so that an executor without standfast can run it.
        import importlib.util

        import pyarrow

        lacking = [name for name in wanted if importlib.util.find_spec(name) is None]
        for batch in batches:
            yield pyarrow.RecordBatch.from_pydict({"lacking": pyarrow.array([", ".join(lacking)] * batch.num_rows)})

    try:
        rows = spark.range(0, count, 1, count).mapInArrow(probe, "lacking string").distinct().collect()
    except PySparkException as error:
        raise executor_error(error) from error
    lacking = sorted({name for row in rows for name in row.lacking.split(", ") if name})
    if lacking:
        raise BadConfig([_lacking(few(lacking))])


def executor_error(error: Exception) -> BadConfig | Unavailable:
    """Our error for Spark's error about an unfit Python on an executor."""
    text = str(error)
    if "No module named" in text:
        return BadConfig([_lacking(text.partition("No module named")[2].strip().split("\n")[0].strip(" '\""))])
    if "PYTHON_VERSION_MISMATCH" in text or "different version" in text:
        return BadConfig(
            [
                "executors run another Python than this process: set PYSPARK_PYTHON to a "
                f"{sys.version_info.major}.{sys.version_info.minor} that they have"
            ]
        )
    return Unavailable(f"Spark could not run a task: {first_line(error)}")


def batch_rows(average_bytes: float) -> int:
    """Rows of an Arrow batch of about 16 MiB: Spark bounds batches by rows, not bytes."""
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(average_bytes, 1.0))))


def first_line(error: BaseException) -> str:
    """The message of an error without the Java stack; that of the innermost cause, if it has one."""
    text = str(error)
    java = getattr(error, "java_exception", None)
    if java is not None:
        text = str(java.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:500]


# By id of the session: its scratch folder, and the content of ARTIFACTS before (None: the folder did not exist).
_OPENED: dict[int, tuple[Path, set[Path] | None]] = {}


def _tidy(before: set[Path] | None) -> None:
    """Remove the empty folders that Spark 4.0 leaves in its start folder."""
    for path in ARTIFACTS.glob("spark-*"):
        if path not in (before or ()):
            with contextlib.suppress(OSError):  # not empty, so still in use
                path.rmdir()
    if before is None:
        with contextlib.suppress(OSError):
            ARTIFACTS.rmdir()


def _set_environment(place: SparkPlace) -> None:
    """Set the environment variables of Spark's launcher and workers; a user's own values stay."""
    if place.java_home is not None:
        os.environ["JAVA_HOME"] = str(place.java_home)
    if place.local:
        # Without it Spark warns about the host's name and binds to another interface.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Another python3 of the PATH may have another minor version, which Spark refuses.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _settings(place: SparkPlace, scratch: Path) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(LOG4J.format(level="error"), encoding="ascii")
    found = DEFAULTS | (LOCAL if place.local else {}) | dict(place.settings)
    # `spark.log.level` would come too late for the first lines.
    quiet = f"-Dlog4j2.configurationFile=file:{log4j}"
    found["spark.driver.extraJavaOptions"] = f"{quiet} {found.get('spark.driver.extraJavaOptions', '')}".strip()
    if place.master is not None or not submitted():
        found["spark.master"] = place.master or MASTER_DEFAULT
    if place.local:
        found.setdefault("spark.local.dir", str(scratch))
        found.setdefault("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    if place.jars:
        found["spark.jars"] = ",".join(place.jars)
    if place.packages:
        found["spark.jars.packages"] = ",".join(place.packages)
    if place.excludes:
        found["spark.jars.excludes"] = ",".join(place.excludes)
    return found | FIXED


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send stderr of this process and its children to a file: Ivy and the JVM print much that no user needs."""
    sys.stderr.flush()
    kept = os.dup(2)  # the descriptor: the Java process inherits that, not sys.stderr
    target = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def _last_lines(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines[-STDERR_LINES:] if line.strip())


def _not_started(error: Exception, said: str, place: SparkPlace) -> BadConfig | Unavailable:
    text = f"{error}\n{said}"
    if "UnsupportedClassVersionError" in text or "getSubject is not supported" in text:
        return BadConfig([_wrong_java(place.java_major)])
    if "JAVA_GATEWAY_EXITED" in text and ("JAVA_HOME is not set" in text or "java: not found" in text):
        return BadConfig([f"Spark found no Java: set JAVA_HOME to a Java of version {_majors()}"])
    if "unresolved dependency" in text or "UNRESOLVED DEPENDENCIES" in text:
        wanted = ", ".join(place.packages)
        return BadConfig(
            [
                f"Maven does not have all of {wanted}: name jar files yourself (--kafka-jars a.jar,b.jar), another "
                "coordinate (STANDFAST_SPARK_PACKAGES), or read with --source native, which needs no jar"
            ]
        )
    return Unavailable(f"Spark did not start at {place.master or MASTER_DEFAULT}: {first_line(error)}\n{said}".rstrip())


def _wrong_java(major: int) -> str:
    version = f"Java {major}" if major else "this Java"
    return f"{version} cannot run Spark 4: set JAVA_HOME to a Java of version {_majors()}"


def _majors() -> str:
    return " or ".join(map(str, JAVA_MAJORS))


def _lacking(names: str) -> str:
    return (
        f"executors cannot import {names}: install standfast[spark] where they run, or ship an environment "
        "(--archives env.tar.gz#env with PYSPARK_PYTHON=./env/bin/python); a zip of Python files is not enough, "
        "because rocksdict and confluent-kafka are compiled"
    )
