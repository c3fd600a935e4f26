"""The Spark session: the errors where a library, a Java or an executor is missing or wrong.

Rules of this file: the session of the tests, and plain values; no package is uninstalled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast.restore.spark.session import (
    SparkPlace,
    batch_rows,
    check_executors,
    library_problems,
    open_session,
)
from standfast.store.errors import BadConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_executors_that_lack_a_library_are_named_with_what_to_do(spark: Any) -> None:
    check_executors(spark)
    with pytest.raises(BadConfig, match=r"cannot import no_such_library: install standfast\[spark\]"):
        check_executors(spark, ("standfast", "no_such_library"))


def test_session_is_local_quiet_and_without_a_page(spark: Any) -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_java_that_is_too_old_is_refused_before_spark_starts() -> None:
    with pytest.raises(BadConfig, match="Java 11 cannot run Spark 4: set JAVA_HOME to a Java of version 17 or 21"):
        open_session("old", SparkPlace("local[1]", Path("/nowhere"), 11))


def test_versions_that_do_not_go_together_are_told_with_the_line_that_installs_others() -> None:
    assert library_problems({"pyspark": "4.0.0", "pandas": "2.3.3", "pyarrow": "26.0.1"}) == []
    assert library_problems({"pyspark": "3.5.1", "pandas": "3.1.1", "pyarrow": "14.0.0"}) == [
        "pyspark 3.5.1 is not supported: pip install 'pyspark>=4.0,<4.1'",
        "pandas 3.1.1 does not work with Spark 4: pip install 'pandas>=2.2,<3'",
        "pyarrow 14.0.0 is too old: pip install 'pyarrow>=18'",
    ]


def test_batches_have_fewer_rows_where_records_are_large() -> None:
    assert [batch_rows(size) for size in (0.0, 100.0, 16_384.0, 1e6, 1e9)] == [10_000, 10_000, 1_024, 16, 1]
