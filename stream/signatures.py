"""Options that a method declares as `**options: Unpack[SomeOptions]`, listed one by one for help().

    the TypedDict SomeOptions     names and types, for type checkers; it may describe the options by rows itself
    the dataclass of its settings rows `name   text` in its docstring describe each option; its defaults

Rules of this file: pure; it changes the output of help() and inspect.signature() for a class, and no behaviour.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, TypeVar

C = TypeVar("C", bound=type)
ROW = re.compile(r"(\w+) {2,}(\S.*)")


def spelled_out(settings: Mapping[Any, type]) -> Callable[[C], C]:
    """Class decorator: help() of its methods lists the options of each `Unpack[...]`, with defaults and descriptions.

    `settings` maps a TypedDict of options to its dataclass; a TypedDict without one has the default None and describes
    itself. Options of `__init__` are described with the class.
    """

    def spell(cls: C) -> C:
        for name, function in list(vars(cls).items()):
            taken = [] if not isinstance(function, FunctionType) else map(str, function.__annotations__.values())
            if any(annotation.startswith("Unpack[") for annotation in taken):
                _spell(function, cls if name == "__init__" else function, settings)
        return cls

    return spell


def _spell(function: FunctionType, described: Any, settings: Mapping[Any, type]) -> None:
    signature = inspect.signature(function)
    *before, last = signature.parameters.values()
    options: Any = function.__globals__[str(last.annotation).removeprefix("Unpack[").removesuffix("]")]
    source = settings.get(options, options)
    defaults = {one.name: one.default for one in fields(source)} if is_dataclass(source) else {}
    named = [
        last.replace(name=name, kind=last.KEYWORD_ONLY, default=defaults.get(name), annotation=kind.__forward_arg__)
        for name, kind in options.__annotations__.items()
    ]
    spelled = signature.replace(parameters=[*before, *named])
    function.__signature__ = spelled  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    # Rows of the TypedDict itself count first: it may have options that are none of the dataclass's settings.
    own = any(ROW.fullmatch(line) for line in inspect.cleandoc(options.__doc__ or "").splitlines())
    texts = (inspect.cleandoc(one.__doc__ or "") for one in (described, options if own else source))
    described.__doc__ = "\n\n".join(rows_with_defaults(text, spelled, defaults) for text in texts)


def rows_with_defaults(text: str, signature: inspect.Signature, options: Collection[str]) -> str:
    """`text` with each row `name   text` of a parameter written as `name=default` and its text below.

    Rows of `options` that the signature does not take are left out.
    """
    lines: list[str] = []
    within = left_out = False
    for line in text.splitlines():
        row = ROW.fullmatch(line)
        if row is not None and row[1] in signature.parameters:
            default = signature.parameters[row[1]].default
            lines += [row[1] + ("" if default is inspect.Parameter.empty else f"={default!r}"), f"    {row[2]}"]
            within, left_out = True, False
            continue
        left_out = (row is not None and row[1] in options) or (left_out and line.startswith(" "))
        within = within and not left_out and line.startswith(" ")
        if not left_out:
            lines.append(f"    {line.strip()}" if within else line)
    return "\n".join(lines)
