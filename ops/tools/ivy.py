"""Fetches jars by Ivy, which pyspark contains: for machines with Java and pyspark but no Maven.

Rules of this file: Ivy copies exactly the listed jars, by its built-in settings; its own cache lies in the folder of
the fetch and goes with it, so that nothing is left in the user's home.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from standfast.ops.tools.fetch_tool import run_tool
from standfast.ops.tools.java import Java
from standfast.ops.tools.java_trust import PASSWORD, key_store, trusted_certificates
from standfast.store.errors import Unavailable

NAMES = "[artifact]-[revision](-[classifier]).[ext]"


def fetch_by_ivy(coordinates: list[tuple[str, str, str, str]], target: Path, folder: Path, java: Java) -> None:
    """Have Ivy copy exactly these jars to `target`; `folder` is for temporary files. Raises Unavailable."""
    jar = find_ivy()
    if jar is None:
        raise Unavailable(
            "fetching jars failed: neither Maven (`mvn`) is on the PATH nor pyspark, which brings Ivy, is installed. "
            'Install one of them: pip install "standfast[spark]"'
        )
    (folder / "ivy.xml").write_text(ivy_module(coordinates), encoding="utf-8")
    command = [str(java.path), *_trust(java, folder), "-jar", str(jar), "-cache", str(folder / "ivy-cache"), "-warn"]
    # "bundle": Ivy's type of a jar whose POM has the packaging of an OSGi bundle.
    command += ["-ivy", str(folder / "ivy.xml"), "-confs", "default", "-types", "jar", "bundle"]
    run_tool("fetching jars by Ivy", [*command, "-retrieve", f"{target}/{NAMES}"], cwd=folder)
    # Ivy ends with exit code 0 also where it found nothing to copy.
    if not target.is_dir():
        raise Unavailable("fetching jars by Ivy failed: Ivy ended without an error and copied nothing")


def find_ivy() -> Path | None:
    """Ivy's jar in an installed pyspark, or None."""
    spark = find_spec("pyspark")
    places = spark.submodule_search_locations or [] if spark else []
    return max((jar for place in places for jar in Path(place).glob("jars/ivy-*.jar")), default=None)


def ivy_module(coordinates: list[tuple[str, str, str, str]]) -> str:
    """An Ivy module that depends on these jars and nothing else."""
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="standfast" module="jars"/><configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    # Not transitive: the pinned list is complete, and a resolved dependency would be a jar without a digest.
    for group, artifact, version, classifier in coordinates:
        named = f'<artifact name="{artifact}" type="jar" ext="jar" m:classifier="{classifier}"/>' if classifier else ""
        lines.append(
            f'<dependency org="{group}" name="{artifact}" rev="{version}" conf="default->default" transitive="false">'
            f"{named}</dependency>"
        )
    return "\n".join([*lines, "</dependencies></ivy-module>", ""])


def _trust(java: Java, folder: Path) -> list[str]:
    """Options by which a fetched Java trusts the authorities of Python; the machine's own Java has its settings."""
    certificates = trusted_certificates() if java.fetched else []
    if not certificates:
        return []
    store = folder / "trust.jks"
    store.write_bytes(key_store(certificates))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
