"""Sets of jars, pinned by version and sha256, fetched once into the cache folder.

    ops/tools/data/jars-<set>.json ──> ensure_jars ──> <cache>/jars/<set>-<first digits of the pins' sha256>/*.jar
                                   │ by Maven, where `mvn` is on the PATH
                                   │ else by the Ivy of an installed pyspark (`ivy`), which needs only Java

Rules of this file: every jar is listed with its digest, so that nothing is resolved at the time of fetching, and every
fetched jar is compared by its digest, by whichever client it came. Jars in the cache are compared at each use as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import Any

from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.fetch_tool import run_tool
from standfast.ops.tools.ivy import fetch_by_ivy
from standfast.ops.tools.java import Java
from standfast.store.errors import Corruption, InternalError, Unavailable

COORDINATE = re.compile(r"[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+){2,3}")
OTHERWISE = (
    "These jars come through Maven's own repositories: set a proxy or a mirror in ~/.m2/settings.xml. Without them, "
    "use a broker that runs already: kafka://host:9092."
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar: `group:artifact:version` or `group:artifact:version:classifier`, and the sha256 of its bytes in hex."""

    coordinate: str
    sha256: str

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Group, artifact, version, classifier; "" without one."""
        group, artifact, version, *classifier = self.coordinate.split(":")
        return group, artifact, version, "".join(classifier)

    @property
    def file_name(self) -> str:
        """Its file name in the folder."""
        return "-".join(part for part in self.parts[1:] if part) + ".jar"


@dataclass(frozen=True, slots=True)
class JarSet:
    """The class path of a program. `version` is for people; `size_bytes` is the sum over all jars."""

    name: str
    version: str
    size_bytes: int
    jars: tuple[Jar, ...]

    @property
    def folder(self) -> str:
        """Name of its folder in the cache; another list of jars gets another folder."""
        # Checkouts of several versions share the cache, and may pin different jars.
        listed = "\n".join(sorted(f"{jar.coordinate} {jar.sha256}" for jar in self.jars))
        return f"{self.name}-{self.version}-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"


def load_jar_set(name: str) -> JarSet:
    """The pinned set `ops/tools/data/jars-<name>.json`."""
    return parse_jar_set(name, json.loads((files("standfast.ops.tools") / f"data/jars-{name}.json").read_text("utf-8")))


def parse_jar_set(name: str, document: dict[str, Any]) -> JarSet:
    """A set from its document. Raises InternalError if it is malformed: the file is part of the package."""
    jars = tuple(Jar(str(entry["jar"]), str(entry["sha256"])) for entry in document["jars"])
    for jar in jars:
        if not COORDINATE.fullmatch(jar.coordinate) or not re.fullmatch("[0-9a-f]{64}", jar.sha256):
            raise InternalError(f"jar set {name}: {jar} is not a coordinate with its sha256")
    return JarSet(name, str(document["version"]), int(document["size_bytes"]), jars)


def ensure_jars(jar_set: JarSet, java: Java, say: Say, cache: Path | None = None) -> Path:
    """The folder with exactly the jars of a set; fetches them if they are absent or differ.

    Raises Unavailable if they cannot be fetched, Corruption if a fetched jar differs from its pinned digest.
    """
    cache = cache or cache_dir()
    target = cache / "jars" / jar_set.folder
    found = problems(jar_set, target) if target.is_dir() else None
    if found == []:
        return target
    if found:
        say(f"the jars in {target} are not the pinned ones ({found[0]}): fetching them again")
    with fetching(cache, say) as folder:
        if problems(jar_set, target) == []:  # another process was quicker
            return target
        by_maven = which("mvn") is not None
        say(f"fetching {jar_set.name} {jar_set.version} ({len(jar_set.jars)} jars, {jar_set.size_bytes / 1e6:.0f} MB) "
            f"by {'Maven' if by_maven else 'Ivy'} to {target}, once")  # fmt: skip
        fetched = folder / "jars"
        coordinates = [jar.parts for jar in jar_set.jars]
        try:
            # Maven first: it takes 11 s for Kafka's jars and Ivy 45 s, and a mirror is set up in its settings.
            if by_maven:
                fetch_by_maven(coordinates, fetched, folder)
            else:
                fetch_by_ivy(coordinates, fetched, folder, java)
        except Unavailable as error:
            raise Unavailable(f"{error}\n{OTHERWISE}") from error
        if found := problems(jar_set, fetched):
            raise Corruption(
                f"the files fetched for {jar_set.name} {jar_set.version} are not the pinned ones: {'; '.join(found)}. "
                "None of them was kept. If a repository manager stands between, it serves other files"
            )
        put_in_place(fetched, target)
    return target


def problems(jar_set: JarSet, folder: Path) -> list[str]:
    """The differences between a folder and the set; [] if there are none."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    wanted = {jar.file_name: jar.sha256 for jar in jar_set.jars}
    found = [f"{name} is missing" for name in sorted(set(wanted) - there)]
    found += [f"{name} is not in the set" for name in sorted(there - set(wanted))]
    for name in sorted(there & set(wanted)):
        digest = sha256_of(folder / name)
        if digest != wanted[name]:
            found.append(f"{name} has sha256 {digest}, pinned is {wanted[name]}")
    return found


def sha256_of(path: Path) -> str:
    """Digest of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_by_maven(coordinates: list[tuple[str, str, str, str]], target: Path, folder: Path) -> None:
    """Have Maven copy exactly these jars to `target`. Raises Unavailable."""
    (folder / "pom.xml").write_text(pom([*coordinates]), encoding="utf-8")
    run_tool(
        "fetching jars by Maven",
        ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), COPY, f"-DoutputDirectory={target}"],
        cwd=folder,
    )
    if not target.is_dir():
        raise Unavailable("fetching jars by Maven failed: Maven ended without an error and copied nothing")


def pom(coordinates: list[tuple[str, str, str, str]], *, transitive: bool = False) -> str:
    """A Maven project that depends on these jars; without `transitive`, on nothing else."""
    # The pinned list is complete; a resolved dependency would be a jar without a digest.
    nothing_else = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    lines = [
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>',
        "<groupId>standfast</groupId><artifactId>jars</artifactId><version>1</version><dependencies>",
    ]
    for group, artifact, version, classifier in coordinates:
        kind = f"<classifier>{classifier}</classifier>" if classifier else ""
        lines.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{kind}"
            f"{'' if transitive else nothing_else}</dependency>"
        )
    return "\n".join([*lines, "</dependencies></project>", ""])
