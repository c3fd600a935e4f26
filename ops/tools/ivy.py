"""Fetches jars by Ivy, which pyspark brings along: for machines with Java and Python but no Maven.

    an installed pyspark's own jar       taken as it is
    <cache>/ivy/ivy-2.5.3.jar            else: from pyspark's archive, downloaded for it once (434 MB, then deleted)

Rules of this file: Ivy copies exactly the jars that it is told, by its built-in settings; its own cache is ours and
goes with the fetch, so that nothing is left in the user's home.
"""

from __future__ import annotations

import hashlib
import tarfile
from importlib.util import find_spec
from pathlib import Path

from standfast.ops.tools.cache import Say
from standfast.ops.tools.fetch_tool import Package, download_package, install_package, run_tool
from standfast.ops.tools.java import Java
from standfast.ops.tools.java_trust import PASSWORD, key_store, trusted_certificates
from standfast.store.errors import Corruption, Unavailable

IVY_JAR = "ivy-2.5.3.jar"
IVY_SHA256 = "9502aa5aabf0b1484924a13ef4b5d24f121f7f91aab6768f11cc9d0906c0803b"
PYSPARK = Package("pyspark", "4.0.1", ("9d1f22d994f60369228397e3479003ffe2dd736ba79165003246ff7bd48e2c73",))
NAMES = "[artifact]-[revision](-[classifier]).[ext]"


def fetch_by_ivy(
    coordinates: list[tuple[str, str, str, str]], target: Path, folder: Path, java: Java, cache: Path, say: Say
) -> None:
    """Have Ivy copy exactly these jars to `target`; `folder` is for what is needed on the way. Raises Unavailable."""
    jar = find_ivy(cache) or fetch_ivy(cache, folder, say)
    (folder / "ivy.xml").write_text(ivy_module(coordinates), encoding="utf-8")
    command = [str(java.path), *_trust(java, folder), "-jar", str(jar), "-cache", str(folder / "ivy-cache"), "-warn"]
    command += ["-ivy", str(folder / "ivy.xml"), "-confs", "default", "-types", "jar", "bundle"]
    run_tool("fetching jars by Ivy", [*command, "-retrieve", f"{target}/{NAMES}"], cwd=folder)
    if not target.is_dir():
        raise Unavailable("fetching jars by Ivy failed: it ended well and copied nothing")


def find_ivy(cache: Path) -> Path | None:
    """Ivy's jar, if an installed pyspark or the cache has it."""
    spark = find_spec("pyspark")
    for place in spark.submodule_search_locations or [] if spark else []:
        if jars := sorted(Path(place).glob("jars/ivy-*.jar")):
            return jars[-1]
    ours = cache / "ivy" / IVY_JAR
    return ours if ours.is_file() else None


def fetch_ivy(cache: Path, folder: Path, say: Say) -> Path:
    """Take Ivy's jar out of pyspark's archive into the cache; only inside `cache.fetching`.

    Raises Unavailable, Corruption.
    """
    say(
        f"neither Maven nor pyspark is here: downloading {PYSPARK.name} {PYSPARK.version} (434 MB) for the Ivy inside "
        "it (1.4 MB), once; with Maven on the PATH this is not needed"
    )
    target = cache / "ivy" / IVY_JAR
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    (folder / "spark").mkdir()
    archive = download_package(PYSPARK, folder / "spark")
    if archive is not None:
        content = _from_archive(archive)
        archive.unlink()
    else:
        content = (install_package(PYSPARK, folder / "spark") / "pyspark/jars" / IVY_JAR).read_bytes()
    if hashlib.sha256(content).hexdigest() != IVY_SHA256:
        raise Corruption(f"{IVY_JAR} in {PYSPARK.name} {PYSPARK.version} is not what is pinned; nothing of it was kept")
    (folder / IVY_JAR).write_bytes(content)
    return (folder / IVY_JAR).replace(target)


def ivy_module(coordinates: list[tuple[str, str, str, str]]) -> str:
    """An Ivy module that depends on these jars and nothing else."""
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="standfast" module="jars"/><configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    for group, artifact, version, classifier in coordinates:
        named = f'<artifact name="{artifact}" type="jar" ext="jar" m:classifier="{classifier}"/>' if classifier else ""
        lines.append(
            f'<dependency org="{group}" name="{artifact}" rev="{version}" conf="default->default" transitive="false">'
            f"{named}</dependency>"
        )
    return "\n".join([*lines, "</dependencies></ivy-module>", ""])


def _from_archive(archive: Path) -> bytes:
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isfile() and member.name.endswith(f"/jars/{IVY_JAR}"):
                file = opened.extractfile(member)
                if file is not None:
                    return file.read()
    raise Unavailable(f"{archive.name} has no {IVY_JAR} in it")


def _trust(java: Java, folder: Path) -> list[str]:
    """A Java that we fetched trusts what Python trusts; the machine's own has its settings."""
    certificates = trusted_certificates() if java.fetched else []
    if not certificates:
        return []
    store = folder / "trust.jks"
    store.write_bytes(key_store(certificates))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
