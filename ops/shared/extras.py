"""Libraries that only some commands need.

Rules of this file: a command whose extra is missing says the exact line that installs it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from standfast.store.errors import BadConfig


def require(extra: str, module: str) -> ModuleType:
    """Import `module`, which `standfast[extra]` installs. Raises BadConfig with the install line if it is missing.

    Only a missing library is told so; an import that fails for another reason fails as it is.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise BadConfig(
            [f"this needs the library {error.name!r}, which is not installed: pip install 'standfast[{extra}]'"]
        ) from error
