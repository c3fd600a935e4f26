"""The compiled part of standfast, which is optional: without a compiler, the package is pure Python and slower.

    STANDFAST_PURE=1    build without it, for a wheel of any system

Rules of this file: everything else stands in pyproject.toml. The module is for Linux and a Python with the interpreter
lock; it links nothing but the C library, and one build serves every Python from 3.11 on (abi3). It is hardened whatever
the flags of the Python that builds it, and names no folder of the machine that builds it.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = "store/native"
NAMES = ("buffer", "client", "fold", "handle", "json_form", "merge", "module", "pieces", "producer", "spill", "sst")
# Checked copies, canaries on the stack, and addresses of functions that nothing can overwrite once they are found.
HARDENED = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"]
FIXED = ["-Wl,-z,relro,-z,now"]


class Build(build_ext):
    """A build by a linker that writes no RUNPATH: folders of the Python that builds hold nothing of the module."""

    def build_extensions(self) -> None:
        """Build all."""
        self.compiler.linker_so = without_runpath(self.compiler.linker_so)
        super().build_extensions()


def without_runpath(words: list[str]) -> list[str]:
    """The words of a command without `-Wl,-rpath,FOLDER`, in one word or in two."""
    found: list[str] = []
    value = False
    for word in words:
        if not value and not word.startswith(("-Wl,-rpath,", "-Wl,-rpath=")) and word != "-Wl,-rpath":
            found.append(word)
        value = word == "-Wl,-rpath"
    return found


fits = sys.platform == "linux" and not sysconfig.get_config_var("Py_GIL_DISABLED")
compiled = fits and not os.environ.get("STANDFAST_PURE")
extension = Extension(
    "standfast.store._native",
    [f"{FOLDER}/{name}.c" for name in NAMES],
    depends=[f"{FOLDER}/native.h", f"{FOLDER}/rdkafka.h"],
    extra_compile_args=["-O2", "-g0", *HARDENED, "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    extra_link_args=[*FIXED, "-Wl,--strip-debug"],
    py_limited_api=True,
    optional=True,  # a missing compiler is a warning of the build
)
setup(
    ext_modules=[extension] if compiled else [],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if compiled else {},
)
