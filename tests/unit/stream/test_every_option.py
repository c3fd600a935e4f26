"""Every option of every public call: misspelt, and with a value of each wrong type, it is refused by an error of ours.

Rules of this file: `standfast.__all__` decides which calls and options there are; no list of them stands here. The
checks come before everything else, so that objects without anything in them will do, and the other arguments of a call
are left out. Methods that run for every record check types as they go: these have a real object and other arguments.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import standfast as sf
from support.attacks.options import Option, options, wrong_for


@pytest.fixture(scope="module")
def real() -> Iterator[dict[str, tuple[Any, dict[str, Any]]]]:
    app = sf.App("app", stores=[sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)])
    contexts: list[sf.Context] = []

    class Keeps(sf.Processor):
        def init(self, context: sf.Context) -> None:
            contexts.append(context)

    app.stream("in").process(Keeps, "kv").to("out")
    record = sf.Record("k", "v", 1)
    with sf.testing.Driver(app) as driver:
        context: Any = contexts[0]
        port: Any = SimpleNamespace(fail=lambda error: None)
        source = sf.SourceContext("lines", 0, 1, 0, port)
        grouped = sf.App("other").stream("in").group_by_key()
        yield {
            "GroupedStream.count": (grouped, {}),
            "WindowedStream.count": (grouped.window(sf.TumblingWindows(5)), {}),
            "KeyValueState.put": (driver.store("kv"), {"key": "k", "value": "v"}),
            "Context.forward": (context, {"record": record}),
            "SourceContext.collect": (source, {"record": record, "offset": 1}),
            "Task.send": (context._task, {"topic": "out", "key": b"k", "value": b"v"}),
        }


def refusal(option: Option, given: dict[str, Any], real: Any) -> str:
    """Empty if the call raised an error of ours that names the option; else the other outcome."""
    try:
        function = option.function
        method = not inspect.isclass(function) and "." in function.__qualname__
        owner, beside = real.get(option.call, (blank(function) if method else None, {}))
        made: Any = function(*([owner] if method else []), **{**beside, **given})
        if inspect.iscoroutine(made):
            made = asyncio.run(made)
    except sf.StandfastError as error:
        text = str(error)
        told = all(re.search(rf"\b{name.rstrip('s')}", text, re.IGNORECASE) for name in (option.name, *given))
        return "" if told else f"says only {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return f"taken, gives {made!r:.60}"


def blank(function: Any) -> Any:
    """An object of the function's class with nothing in it."""
    owner: Any = sys.modules[function.__module__]
    for name in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, name)
    return object.__new__(owner)


def test_misspelt_option_of_every_call_is_refused_with_the_one_that_was_meant(real: Any) -> None:
    wrong = []
    for option in options():
        misspelt = option.name + option.name[-1]  # such as keyy
        told = refusal(option, {misspelt: None}, real)
        wrong += [f"{option.call}({misspelt}): {told}"] if told else []
    assert wrong == [], "\n" + "\n".join(wrong)


def test_value_of_a_wrong_type_for_every_option_is_refused_with_its_name(real: Any) -> None:
    wrong = []
    for option in options():
        for kind, value in wrong_for(option.kind).items():
            told = refusal(option, {option.name: value}, real)
            wrong += [f"{option.call}({option.name}={kind.__name__}): {told}"] if told else []
    assert wrong == [], "\n" + "\n".join(wrong)
