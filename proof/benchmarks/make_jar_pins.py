"""The pinned jars of a set, resolved again: every jar that Maven resolves for the set's roots, with its sha256.

    python proof/benchmarks/make_jar_pins.py ops/tools/data/jars-kafka.json           with the roots that the file names
    python proof/benchmarks/make_jar_pins.py FILE VERSION GROUP:ARTIFACT:VERSION[:CLASSIFIER]...

Needs Maven. Review the diff before keeping it: from then on, only these bytes are accepted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from standfast.ops.tools.jars import COPY, Jar, pom, sha256_of

LISTED = re.compile(r"^\s*([\w.-]+):([\w.-]+):jar:(?:([\w.-]+):)?([\w.-]+):(?:compile|runtime)", re.MULTILINE)


def main(path: Path, version: str, roots: list[str]) -> None:
    """Resolve the roots and write the file of pins."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(pom([Jar(root, "").parts for root in roots], transitive=True), encoding="utf-8")
        run = ["mvn", "-q", "-B", "-DincludeScope=runtime", "-f", str(folder / "pom.xml")]
        listing = folder / "list.txt"
        subprocess.run([*run, COPY, f"-DoutputDirectory={folder}/jars"], check=True)
        subprocess.run([*run, COPY.replace("copy-dependencies", "list"), f"-DoutputFile={listing}"], check=True)
        found = LISTED.findall(re.sub(r"\x1b\[[0-9;]*m", "", listing.read_text(encoding="utf-8")))
        jars = sorted(
            {Jar(":".join(filter(None, [g, a, v, kind])), "") for g, a, kind, v in found}, key=lambda j: j.coordinate
        )
        entries = [{"jar": jar.coordinate, "sha256": sha256_of(folder / "jars" / jar.file_name)} for jar in jars]
        on_disk = list((folder / "jars").iterdir())
        if len(on_disk) != len(entries):
            raise SystemExit(f"Maven copied {len(on_disk)} jars and listed {len(entries)}")
        size_bytes = sum(jar.stat().st_size for jar in on_disk)
    lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
    head = f'{{\n  "version": "{version}",\n  "size_bytes": {size_bytes},\n  "roots": {json.dumps(roots)},\n'
    path.write_text(f'{head}  "jars": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if len(sys.argv) > 2:
        main(target, sys.argv[2], sys.argv[3:])
    else:
        known = json.loads(target.read_text(encoding="utf-8"))
        main(target, known["version"], known["roots"])
