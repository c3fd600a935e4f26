"""Programs of Debian's packages: the machine's own, or unpacked without installing.

    PATH                                     taken as it is
    <cache>/debian/<package>/usr/bin/...     else: `apt-get download`, `dpkg-deb --extract`, once; needs no root

Unpacking runs no script of the package: it creates no user and starts no daemon.

Rules of this file: one package with its program; its dependencies must be installed (a Go program has none). The
machine's own package sources are used; no address stands here.
"""

from __future__ import annotations

from pathlib import Path
from shutil import which

from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.fetch_tool import run_tool
from standfast.store.errors import Unavailable


def find_program(package: str, program: str, cache: Path | None = None) -> Path | None:
    """The program if it is installed already."""
    on_path = which(program)
    if on_path is not None:
        return Path(on_path)
    unpacked = _home(cache or cache_dir(), package) / "usr/bin" / program
    return unpacked if unpacked.is_file() else None


def ensure_program(package: str, program: str, say: Say, cache: Path | None = None) -> Path:
    """The program, unpacked from its package if the machine lacks it. Raises Unavailable naming the package."""
    cache = cache or cache_dir()
    if found := find_program(package, program, cache):
        return found
    home = _home(cache, package)
    say(f"no {program} on this machine: unpacking Debian's package {package} to {home}, once")
    try:
        with fetching(cache, say) as folder:
            if found := find_program(package, program, cache):  # another process was quicker
                return found
            run_tool(f"downloading {package}", ["apt-get", "download", "--quiet", package], cwd=folder)
            archive = next(folder.glob("*.deb"))
            run_tool(f"unpacking {package}", ["dpkg-deb", "--extract", archive, folder / "root"], cwd=folder)
            if not (folder / "root/usr/bin" / program).is_file():
                raise Unavailable(f"the package {package} holds no {program}")
            put_in_place(folder / "root", home)
    except Unavailable as error:
        raise Unavailable(
            f"no {program}: it is not on the PATH, and {error}\nInstall it (Debian: apt-get install {package})."
        ) from error
    return home / "usr/bin" / program


def _home(cache: Path, package: str) -> Path:
    return cache / "debian" / package
