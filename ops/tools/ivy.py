"""Fetches jars by Ivy, which pyspark contains: for machines with Java and pyspark but no Maven.

A fetched Java has its own list of authorities, without those that the machine's owner added (a company's proxy); Python
knows them, so Ivy gets the certificates that Python trusts, as a Java key store. Its format is JKS version
2, all numbers big-endian:

    FEEDFEED | 2 | count | per certificate: 2 | alias | created ms (8 bytes) | "X.509" | length | DER | SHA-1
    the SHA-1 is of: password in UTF-16BE | "Mighty Aphrodite" | all bytes before it

Rules of this file: Ivy copies exactly the listed jars, by its built-in settings; its own cache lies in the folder of
the fetch and goes with it, so that nothing is left in the user's home. The store has public certificates only, so its
password protects nothing and is the customary one.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from standfast.ops.tools.fetch_tool import run_tool
from standfast.ops.tools.java import Java
from standfast.store.errors import Unavailable

PASSWORD = "changeit"  # noqa: S105  of a store without secrets
TRUSTED_CERTIFICATE = 2
EXTRA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
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


def trusted_certificates() -> list[bytes]:
    """DER of every authority that Python trusts here, including those named in the environment; may be []."""
    context = ssl.create_default_context()
    for name in EXTRA_VARIABLES:
        if path := os.environ.get(name):
            try:
                context.load_verify_locations(path)
            except (OSError, ssl.SSLError):
                continue  # Python's clients cannot use this path either, and report it better
    return context.get_ca_certs(binary_form=True)


def key_store(certificates: Sequence[bytes]) -> bytes:
    """The key store with these certificates."""
    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    for number, der in enumerate(certificates):
        parts += [struct.pack(">I", TRUSTED_CERTIFICATE), _text(f"authority-{number}"), struct.pack(">Q", 0)]
        parts += [_text("X.509"), struct.pack(">I", len(der)), der]
    content = b"".join(parts)
    # JKS's checksum against changes; Java refuses a store without it once a password is given.
    salted = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + content
    return content + hashlib.sha1(salted, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    return struct.pack(">H", len(raw)) + raw
