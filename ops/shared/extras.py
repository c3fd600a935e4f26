"""Libraries that only some commands and settings need.

Rules of this file: the error for a missing extra contains the exact line that installs it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from standfast.store.errors import BadConfig

SERVE = ("starlette", "uvicorn", "jinja2")  # imports of an HTTP server from the extra `serve`


def require(extra: str, module: str, *more: str) -> ModuleType:
    """Import modules that `standfast[extra]` installs and return the first. Raises BadConfig with the install line.

    BadConfig stands for a missing library only; an import that fails for another reason raises its own error.
    """
    found = _required(extra, module)
    for one in more:
        _required(extra, one)
    return found


def _required(extra: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A missing module of another package means a broken installation, which the install line would not mend.
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise BadConfig([f"the library {error.name!r} is needed and not installed: {install(extra)}"]) from error


def install(extra: str) -> str:
    """The line that installs an extra."""
    return f"pip install 'standfast[{extra}]'"
