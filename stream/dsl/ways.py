"""Names that people try, from other libraries or in another step's place, each with the way to the same end.

    stream.count("seen")      Stream has no count: an aggregation needs a group: .group_by_key().count("store")
    stream.fliter(f)          Stream has no fliter: did you mean filter?

Rules of this file: text alone. Each way is a sentence that goes on after "has no NAME: ".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from standfast.store.errors import BadConfig

_GROUP = "an aggregation needs a group: .group_by_key().{0}(...), or .group_by(mapper).{0}(...)"
_WINDOW = ".window(sf.TumblingWindows(60_000)), or another kind of windows, behind .group_by_key()"
_BRANCH = "write one .filter(...) for each branch on the same stream, and .filter_not(...) for the rest"
_TABLE = 'write it to a topic, .to("topic"), and read that by app.table("topic", "store")'
_JOIN = "a stream joins a table alone: .join(app.table(...), joiner), or .left_join"
_ALONE = ".process(MyProcessor) takes a class with process(self, record), for everything that no step does"
STREAM: Mapping[str, str] = {
    **{name: _GROUP.format(name) for name in ("count", "reduce", "aggregate")},
    **dict.fromkeys(("agg", "sum", "cogroup"), _GROUP.format("aggregate")),
    **dict.fromkeys(("window", "windowed_by", "tumbling_window", "hopping_window", "sliding_window"), _WINDOW),
    **dict.fromkeys(("foreach", "for_each", "update"), ".peek(action) calls a function for each record"),
    **dict.fromkeys(("print", "show"), ".peek(print) prints key and value of each record"),
    **dict.fromkeys(("branch", "split", "default_branch"), _BRANCH),
    **dict.fromkeys(("to_table", "as_table"), _TABLE),
    **dict.fromkeys(("outer_join", "join_lookup", "join_asof", "join_interval"), _JOIN),
    **dict.fromkeys(
        ("key_by", "rekey", "set_key"), ".select_key(mapper) gives the new key, .group_by(mapper) groups by"
    ),
    **dict.fromkeys(("transform", "transform_values", "process_values"), _ALONE),
    **dict.fromkeys(
        ("apply", "select", "assign"), ".map_values(mapper) gives the new value, .map(mapper) a new key, too"
    ),
    **dict.fromkeys(("sink", "to_topic", "send", "write"), '.to("topic") writes to a topic'),
    "through": '.to("topic") and app.stream("topic"), or .repartition("name") for a topic of the application\'s own',
    "union": ".merge(other) has the records of both streams",
    "suppress": "emit=sf.ON_WINDOW_CLOSE of the aggregation gives each window once, when it closes",
    "run": "the application runs: app.run()",
}
TABLE: Mapping[str, str] = {
    **STREAM,
    **dict.fromkeys(
        ("count", "reduce", "aggregate", "agg", "sum", "cogroup"),
        "updates of a table would be added without taking old values away: aggregate the stream that it is made of, or "
        "the updates themselves, .to_stream().group_by_key()",
    ),
}
GROUPED: Mapping[str, str] = {
    **dict.fromkeys(("windowed_by", "tumbling_window", "hopping_window", "sliding_window", "session_window"),
                    ".window(sf.TumblingWindows(60_000)), or another kind of windows"),
    **dict.fromkeys(("agg", "sum", "cogroup", "fold"), ".aggregate(init, add, store) takes any function"),
    **dict.fromkeys(("to", "map", "map_values", "filter", "peek", "process"),
                    "a group has no records yet: count, reduce or aggregate, with the name of a store, "
                    "first"),
}  # fmt: skip
WINDOWED: Mapping[str, str] = {
    **GROUPED,
    **dict.fromkeys(("final", "current", "suppress", "emit_strategy"),
                    "emit=sf.ON_WINDOW_CLOSE, or sf.ON_WINDOW_UPDATE, is an option of count, reduce and aggregate"),
    "window": "its windows are given already",
}  # fmt: skip
APP: Mapping[str, str] = {
    **dict.fromkeys(("topic", "dataframe", "from_topic", "kstream"), 'app.stream("topic") reads a topic'),
    **dict.fromkeys(("agent", "processor"), '@app.source("topic") on a class sf.Processor'),
    **dict.fromkeys(("ktable", "global_table"), 'app.table("topic") reads a topic as a table'),
    **dict.fromkeys(("filter", "map", "map_values", "to", "group_by_key"), 'a step of app.stream("topic")'),
    **dict.fromkeys(("start", "main"), "app.run() processes until app.stop()"),
    **dict.fromkeys(("close", "shutdown"), "app.stop() ends app.run()"),
    "send": "app.producer() has send(topic, key, value)",
    "store": "a processor has its stores by context.store(name), a test by driver.store(name)",
}


class NoStep(BadConfig, AttributeError):
    """There is no such method; an AttributeError as well, so that `hasattr` says so."""


def no_step(owner: type, name: str, ways: Mapping[str, str]) -> AttributeError:
    """The error of an attribute that a class does not have."""
    if name.startswith("_"):  # looked for by Python itself and by libraries
        return AttributeError(f"{owner.__name__!r} object has no attribute {name!r}")
    import difflib  # its modules are for errors alone

    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    public = [one for one in dir(owner) if not one.startswith("_")]
    near = [snake] if snake in public else difflib.get_close_matches(snake, [*public, *ways], 1, 0.7)
    way = ways.get(snake)
    if way is None and near:
        way = f"did you mean {near[0]}?" if near[0] in public else ways[near[0]]
    if way is None:
        way = "help() of the class lists its steps"
    return NoStep([f"{owner.__name__} has no {name}: {way}"])
