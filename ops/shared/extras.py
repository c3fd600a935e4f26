"""Libraries that only some commands and settings need.

Rules of this file: whoever needs an extra that is missing is told the exact line that installs it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from standfast.store.errors import BadConfig

SERVE = ("starlette", "uvicorn", "jinja2")  # what an HTTP server needs of the extra `serve`


def require(extra: str, module: str, *more: str) -> ModuleType:
    """Import modules that `standfast[extra]` installs; the first one. Raises BadConfig with the install line.

    Only a missing library is told so; an import that fails for another reason fails as it is.
    """
    found = _required(extra, module)
    for one in more:
        _required(extra, one)
    return found


def _required(extra: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise BadConfig([f"this needs the library {error.name!r}, which is not installed: {install(extra)}"]) from error


def install(extra: str) -> str:
    """The line that installs an extra."""
    return f"pip install 'standfast[{extra}]'"


def can_serve() -> bool:
    """Whether an HTTP server can be opened here."""
    return all(find_spec(module) is not None for module in SERVE)
