"""The compiled part of standfast, which is optional: without a compiler, the package is pure Python and slower.

    STANDFAST_PURE=1    build without it, for a wheel of any system

Rules of this file: everything else stands in pyproject.toml. The module is for Linux and a Python with the interpreter
lock; it links nothing but the C library, and one build serves every Python from 3.11 on (abi3).
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

FOLDER = "replication/kafka/native"
NAMES = ("client", "fold", "handle", "merge", "module", "pieces", "producer", "put", "spill", "sst")

fits = sys.platform == "linux" and not sysconfig.get_config_var("Py_GIL_DISABLED")
compiled = fits and not os.environ.get("STANDFAST_PURE")
extension = Extension(
    "standfast.replication.kafka._native",
    [f"{FOLDER}/{name}.c" for name in NAMES],
    depends=[f"{FOLDER}/native.h", f"{FOLDER}/rdkafka.h"],
    extra_compile_args=["-O2", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    py_limited_api=True,
    optional=True,  # a missing compiler is a warning of the build
)
setup(
    ext_modules=[extension] if compiled else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if compiled else {},
)
