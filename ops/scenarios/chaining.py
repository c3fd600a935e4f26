"""The scenario `chaining`: what is called directly, and which records pass a topic.

    the topology as text and as Mermaid; when a topic is needed; a record called on and one through a topic; broadcast

Rules of this file: it declares small applications and runs them on the test driver; the numbers expected stand in the
calls of `stage.step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from standfast.ops.scenarios.stage import Stage, take
from standfast.store import serde
from standfast.store.errors import BadConfig
from standfast.store.specs import KeyValueStore
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.dsl.fluent import Stream
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor

NAME = "chaining"
Notes = list[dict[str, Any]]


def play(stage: Stage) -> None:
    """Every part in turn."""
    _topology(stage)
    _when_a_topic(stage)
    _partitions(stage)
    _records(stage)
    _filtered(stage)
    _broadcast(stage)


def counting_app() -> App:
    """An application with a store to count into."""
    return App(NAME, stores=[KeyValueStore("counts", serde.string, serde.int64)])


def noting(where: str, notes: Notes, values: list[Any]) -> type[Processor]:
    """A processor that notes how each record reached it, and whether its value is the very object noted before."""

    class Noting(Processor):
        stores = ()

        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            context, value = self.context, record.value
            same = any(value is one for one in values)
            values.append(value)
            notes.append({"at": where, "topic": context.topic, "task": context.task_id, "same_object": same})
            context.forward(record)

    return Noting


def _topology(stage: Stage) -> None:
    app = counting_app()
    words = app.stream("lines").flat_map(lambda _, line: [(None, word) for word in line.split()], name="split")
    words.filter(lambda _, word: len(word) > 1, name="longer").group_by(lambda _, word: word).count("counts").to("out")
    topology = app.topology()
    stage.part(
        "An application as text and as Mermaid: split and filter words, count them",
        f"{topology}\n{topology.to_mermaid()}",
    )
    seen = {"sub_topologies": len(topology.groups), "topics": [one.name for one in topology.internal]}
    expected = {"sub_topologies": 2, "topics": ["chaining-counts-repartition"]}
    stage.step("the topology", seen, expected, "group_by changes the key: equal words must meet in one task")
    direct = [node.name for node in topology.groups[0].processors]
    stage.step("sub-topology 0", direct, ["split", "longer", "select-key-3"], "called directly, one after the other")
    stage.step(
        "sub-topology 1", [node.name for node in topology.groups[1].processors], ["counts-count"], "behind the topic"
    )


def _when_a_topic(stage: Stage) -> None:
    stage.part("When a topic is put between: only where equal keys must meet and the key may have changed")
    cases: tuple[tuple[str, Callable[[Stream], object], list[str], str], ...] = (
        (
            "filter, map_values, group_by_key, count",
            lambda s: s.filter(lambda *_: True).map_values(str).group_by_key().count("counts"),
            [],
            "the key stays: all direct calls",
        ),
        (
            "map, group_by_key, count",
            lambda s: s.map(lambda k, v: (v, k)).group_by_key().count("counts"),
            ["chaining-counts-repartition"],
            "map may have changed the key",
        ),
        ("map, to", lambda s: s.map(lambda k, v: (v, k)).to("out"), [], "nothing behind it needs equal keys together"),
        (
            "map_values, repartition, map_values, to",
            lambda s: s.map_values(str).repartition("break").map_values(str).to("out"),
            ["chaining-break-repartition"],
            "an explicit break",
        ),
    )
    for given, declare, topics, why in cases:
        app = counting_app()
        declare(app.stream("in"))
        topology = app.topology()
        seen = {"sub_topologies": len(topology.groups), "topics": [one.name for one in topology.internal]}
        stage.step(given, seen, {"sub_topologies": 1 + len(topics), "topics": topics}, why)


def _partitions(stage: Stage) -> None:
    stage.part("Only with equal partition counts: orders has 4 partitions, the table of customers has 2")
    for given, through, expected, why in (
        ("orders joined with the table", False, "refused", "a customer's order and row would be in two tasks"),
        ("orders, repartition to 2, joined", True, "2 sub-topologies", "the topic between has 2 partitions"),
    ):
        app = App(NAME)
        orders = app.stream("orders")
        joined = orders.repartition("orders", partitions=2) if through else orders
        joined.join(app.table("customers"), lambda order, customer: [order, customer]).to("out")
        try:
            topology = app.builder.build({"orders": 4, "customers": 2})
            seen = f"{len(topology.groups)} sub-topologies"
        except BadConfig:
            seen = "refused"
        stage.step(given, seen, expected, why)


def _records(stage: Stage) -> None:
    stage.part("One record on its way: called on as the object it is, and through a topic as bytes")
    notes: Notes = []
    values: list[Any] = []
    app = App(NAME)
    (
        app.stream("in", key=serde.string, value=serde.json)
        .map_values(lambda value: (value, "a tuple"))
        .process(noting("first", notes, values), name="first")
        .process(noting("second", notes, values), name="second")
        .select_key(lambda _, value: value[0])
        .repartition("middle", key=serde.string, value=serde.json)
        .process(noting("third", notes, values), name="third")
    )
    with Driver(app, partitions=4) as driver:
        driver.pipe("in", "k", "JFK", 1, partition=2)
        middle = "chaining-middle-repartition"
        for at, topic, task, same, why in (
            ("first", "in", "0_2", False, "partition 2 is task 0_2"),
            ("second", "in", "0_2", True, "a direct call: the same object, nothing is serialised"),
            ("third", middle, "1_3", False, "through the topic, as bytes; the new key JFK belongs to partition 3"),
        ):
            expected = {"at": at, "topic": topic, "task": task, "same_object": same}
            seen = notes.pop(0) if notes else None
            stage.step(f"record k in partition 2 reaches the {at} processor", seen, expected, why)


def _filtered(stage: Stage) -> None:
    stage.part("Which records pass the topic: split and filter are called directly, so only what is left does")
    split: list[str] = []
    behind: list[str] = []
    app = App(NAME)
    words = app.stream("lines").flat_map(lambda _, line: [(word, word) for word in line.split()])
    words = words.peek(lambda _, word: split.append(word)).filter(lambda _, word: len(word) > 1)
    words.repartition("words").peek(lambda _, word: behind.append(word))
    with Driver(app) as driver:
        for line, parted, passed, why in (
            ("a fox saw a dog", 5, ["fox", "saw", "dog"], "a is too short"),
            ("I", 1, [], "nothing passes"),
        ):
            driver.pipe("lines", None, line, 1)
            seen = {"split": len(take(split)), "through_topic": take(behind)}
            stage.step(f"line {line!r}", seen, {"split": parted, "through_topic": passed}, why)


def _broadcast(stage: Stage) -> None:
    stage.part("Broadcast: every record to every task behind it")
    notes: Notes = []
    app = App(NAME)
    app.stream("rates").broadcast("all").process(noting("behind", notes, []))
    with Driver(app, partitions=2) as driver:
        driver.pipe("rates", "EUR", 1, 1, partition=0)
        tasks = [note["task"] for note in take(notes)]
        stage.step("one record in partition 0", sorted(tasks), ["1_0", "1_1"], "both tasks see it")
