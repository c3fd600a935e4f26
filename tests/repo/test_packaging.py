"""The package as a user gets it: built from the files of the repository alone, installed in an environment of its own.

Rules of this file: no step here may see the checkout: the archives are built from a copy, and a Python with the wheel
and its dependencies, and without the sources, runs the wheel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from support.groups import costly

pytestmark = [pytest.mark.slow, pytest.mark.packaging]

WHEEL_BYTES_MAX = 2_400_000
COMPILED = "standfast/store/_native.abi3.so"


def run(command: list[str | Path], cwd: Path) -> str:
    """Output of a command in an environment that does not point at the checkout."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(repo_root: Path) -> list[str]:
    settings = tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))
    return list(settings["tool"]["setuptools"]["packages"])


@pytest.fixture(scope="module")
@costly("packaging")
def archives(repo_root: Path, repo_files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source archive, and the wheel built from that archive."""
    copy = tmp_path_factory.mktemp("copy")
    for name in repo_files:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(repo_root / name, target)
    shutil.copytree(repo_root / ".typing", copy / ".typing", symlinks=True)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy], copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel_names(archives: Path) -> list[str]:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
@costly("packaging")
def installed(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment with the wheel; its dependencies are those of the tests' environment."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False)  # a pip of its own costs ten seconds, and is none of ours
    python = home / "bin/python"
    (wheel,) = archives.glob("*.whl")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel], home)
    # A line of a .pth file adds a folder and does not run the .pth files in it: the editable checkout stays out.
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], home).strip())
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return python


def test_wheel_holds_exactly_the_modules_on_disk(
    repo_files: list[str], packages: list[str], wheel_names: list[str]
) -> None:
    folders = {name.removeprefix("standfast.") for name in packages}
    wanted = {
        name if name.startswith("standfast/") else f"standfast/{name}"
        for name in repo_files
        if name.partition("/")[0] in folders and (name.endswith((".py", "py.typed")) or "/data/" in name)
    }
    assert {name for name in wheel_names if ".dist-info/" not in name} == wanted | {
        "pyspark_standfast.py",
        COMPILED,
    }


def test_wheel_holds_types_data_and_licence_and_no_tests(packages: list[str], wheel_names: list[str]) -> None:
    for package in packages:
        if package.count(".") < 2:  # the marker of a package counts for those below it
            assert f"{package.replace('.', '/')}/py.typed" in wheel_names
    assert "standfast/ops/demo/data/flights-2013-01.csv.gz" in wheel_names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
    assert [name for name in wheel_names if any(part in name for part in (".typing", "tests/", "proof/"))] == []


def test_wheel_is_small(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX


def test_source_archive_holds_no_links_and_no_tests(archives: Path) -> None:
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    inner = [member.name.partition("/")[2] for member in members]
    assert [name for name in inner if name.startswith((".typing", "tests", "proof", "examples"))] == []
    assert {"LICENSE", "README.md", "pyproject.toml", "store/errors.py"} <= set(inner)


def test_installed_command_tells_its_version_and_its_client_of_kafka(installed: Path, archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    version = wheel.name.split("-")[1]
    first, *parts = run([installed.parent / "standfast", "--version"], archives).splitlines()
    assert first == f"standfast {version}"
    assert [line.partition(" on librdkafka 2.")[0] for line in parts] == [
        "reader of Kafka: compiled,",
        "writer of Kafka: compiled,",
    ]


@pytest.mark.long
def test_wheel_serves_every_python_and_a_pure_one_every_system(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel,) = archives.glob("*.whl")
    assert "-cp311-abi3-linux_" in wheel.name
    monkeypatch.setenv("STANDFAST_PURE", "1")
    (source,) = archives.glob("*.tar.gz")
    with tarfile.open(source) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "pure", folder], tmp_path)
    (pure,) = (tmp_path / "pure").iterdir()
    assert pure.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(pure) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".c"))]


@pytest.fixture(scope="module")
def module(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled module of the wheel."""
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(COMPILED, tmp_path_factory.mktemp("module")))


def test_compiled_module_of_the_wheel_is_hardened_and_has_no_folder_and_no_debug_data_of_its_builder(
    module: Path, repo_root: Path
) -> None:
    dynamic = run(["readelf", "-W", "-d", module], module.parent)
    assert "RUNPATH" not in dynamic and "RPATH" not in dynamic
    assert "BIND_NOW" in dynamic and "NOW" in dynamic.partition("FLAGS_1")[2]
    assert "GNU_RELRO" in run(["readelf", "-W", "-l", module], module.parent)
    assert ".debug" not in run(["readelf", "-W", "-S", module], module.parent)
    assert "__stack_chk_fail" in run(["readelf", "-W", "--dyn-syms", module], module.parent)
    for folder in (sysconfig.get_path("include"), sysconfig.get_config_var("LIBDIR"), str(repo_root)):
        assert str(folder).encode() not in module.read_bytes()


@pytest.mark.long
def test_compiled_module_is_hardened_whatever_the_flags_of_its_builder(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder with flags of its own: ours come after them."""
    (source,) = archives.glob("*.tar.gz")
    with tarfile.open(source) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    monkeypatch.setenv("CFLAGS", "-O0 -g3 -D_FORTIFY_SOURCE=3 -fno-stack-protector -Werror")
    monkeypatch.setenv("LDFLAGS", "-Wl,-rpath,/one -Wl,-rpath -Wl,/two -Wl,-z,norelro -Wl,-z,lazy")
    told = run([sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path / "built"], folder)
    compiling = [line for line in told.splitlines() if line.endswith(".c") or ".c -o " in line]
    assert compiling and all("-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2" in line for line in compiling)
    (built,) = (tmp_path / "built").rglob("*.so")
    dynamic = run(["readelf", "-W", "-d", built], folder)
    assert "PATH" not in dynamic and "BIND_NOW" in dynamic
    assert "GNU_RELRO" in run(["readelf", "-W", "-l", built], folder)
    assert ".debug" not in run(["readelf", "-W", "-S", built], folder)


def test_every_package_and_public_name_imports_from_the_wheel(
    installed: Path, archives: Path, packages: list[str]
) -> None:
    script = (
        "import importlib, standfast\n"
        f"for name in {packages!r}: print(importlib.import_module(name).__file__)\n"
        "for name in standfast.__all__: getattr(standfast, name)\n"
    )
    lines = run([installed, "-c", script], archives).splitlines()
    assert len(lines) == len(packages)
    home = str(installed.parent.parent)
    assert [line for line in lines if not line.startswith(home)] == []


def test_every_module_of_the_wheel_imports(installed: Path, archives: Path, wheel_names: list[str]) -> None:
    optional = ("standfast.restore.spark", "standfast.stream.tracing", "pyspark_")  # needs an extra
    names = [name.removesuffix(".py").replace("/", ".") for name in wheel_names if name.endswith(".py")]
    modules = sorted({name.removesuffix(".__init__") for name in names if not name.startswith(optional)})
    run([installed, "-c", f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"], archives)


def test_spark_finds_the_data_source_of_the_wheel(installed: Path, archives: Path) -> None:
    """Spark finds it by importing every top-level module whose name begins with `pyspark_`."""
    script = (
        "import importlib, pkgutil, sys\n"
        "(name,) = [one.name for one in pkgutil.iter_modules() if one.name.startswith('pyspark_')]\n"
        "from pyspark.sql.datasource import DataSource\n"
        "before = set(sys.modules)\n"
        "source = importlib.import_module(name).DefaultSource\n"
        "imported = {one.partition('.')[0] for one in set(sys.modules) - before}\n"
        "print(source.name(), issubclass(source, DataSource), *sorted(imported))"
    )
    assert run([installed, "-c", script], archives).strip() == "standfast True pyspark_standfast standfast"


def test_sample_data_is_readable_from_the_wheel(installed: Path, archives: Path) -> None:
    script = (
        "import gzip, importlib.resources as r\n"
        "data = (r.files('standfast.ops.demo') / 'data/flights-2013-01.csv.gz').read_bytes()\n"
        "print(len(gzip.decompress(data).splitlines()))"
    )
    assert run([installed, "-c", script], archives).strip() == "27005"
