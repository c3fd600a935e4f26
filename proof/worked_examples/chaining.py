"""The player of applications as they are chained: direct calls, and records that pass a topic.

    words | case map, to | joined 2           declare: count words | a chain of CASES | join orders, with 2 partitions
    topology | shape | processors 0           its text and Mermaid | its topics | direct calls of sub-topology 0
    run on_the_way 4 | run broadcast 2        play a chain of RUNS with so many partitions
    run filtered 1
    record in JFK 2 | line a fox              a record in partition 2 | a line of words
    reached | split | tasks                   how one record reached a processor | words, and those behind the topic |
                                              tasks that saw the record

Rules of this file: it declares small applications; the expected results are written in the script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from standfast.store import serde
from standfast.store.errors import BadConfig
from standfast.store.specs import KeyValueStore
from standfast.stream.app.app import App
from standfast.stream.dsl.fluent import Stream
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor
from worked_examples.driven import Driven

NAME = "chaining"
CASES: dict[str, Callable[[Stream], object]] = {
    "filter, map_values, group_by_key, count": lambda s: (
        s.filter(lambda *_: True).map_values(str).group_by_key().count("counts")
    ),
    "map, group_by_key, count": lambda s: s.map(lambda k, v: (v, k)).group_by_key().count("counts"),
    "map, to": lambda s: s.map(lambda k, v: (v, k)).to("out"),
    "map_values, repartition, map_values, to": lambda s: (
        s.map_values(str).repartition("break").map_values(str).to("out")
    ),
}


class Chains(Driven):
    """One application after the other."""

    def words(self) -> None:
        """Declare an application that counts words."""
        app = _counting()
        words = app.stream("lines").flat_map(lambda _, line: [(None, word) for word in line.split()], name="split")
        longer = words.filter(lambda _, word: len(word) > 1, name="longer")
        longer.group_by(lambda _, word: word).count("counts").to("out")
        self.declared = app.topology()

    def topology(self) -> str:
        """The application as text and as Mermaid."""
        return f"{self.declared}\n{self.declared.to_mermaid()}"

    def case(self, *words: str) -> None:
        """Declare one of CASES."""
        app = _counting()
        CASES[" ".join(words)](app.stream("in"))
        self.declared = app.topology()

    def shape(self) -> dict[str, Any]:
        """Number of sub-topologies, and the topics between."""
        return {
            "sub_topologies": len(self.declared.groups),
            "topics": [one.name for one in self.declared.internal],
        }

    def processors(self, group: str) -> list[str]:
        """Processors of a sub-topology, which call each other directly, in order."""
        return [node.name for node in self.declared.groups[int(group)].processors]

    def joined(self, partitions: str = "") -> str:
        """Orders of 4 partitions joined with a table of 2, if need be through a topic with so many partitions."""
        app = App(NAME)
        orders = app.stream("orders")
        through = orders.repartition("orders", partitions=int(partitions)) if partitions else orders
        through.join(app.table("customers"), lambda order, customer: [order, customer]).to("out")
        try:
            # Without a log: only the numbers of partitions count here.
            topology = app.builder.build({"orders": 4, "customers": 2})
        except BadConfig:
            return "refused"
        return f"{len(topology.groups)} sub-topologies"

    def run(self, chain: str, partitions: str) -> None:
        """Play one of RUNS."""
        self.split_words: list[str] = []
        self.values: list[Any] = []
        app = App(NAME)
        RUNS[chain](self, app)
        self.open(app, partitions=int(partitions))

    def record(self, topic: str, value: str, partition: str) -> None:
        """Pipe a record of key k."""
        self.running.pipe(topic, "k", value, 1, partition=int(partition))

    def line(self, *words: str) -> dict[str, Any]:
        """Pipe a line: the number of its words, and those of them that passed the topic."""
        self.split_words.clear()
        self.running.pipe("lines", None, " ".join(words), 1)
        return {"split": len(self.split_words), "through_topic": self.take()}

    def reached(self) -> Any:
        """How the record reached the next processor."""
        return self.noted.pop(0) if self.noted else None

    def tasks(self) -> list[str]:
        """Tasks that saw the record."""
        return sorted(note["task"] for note in self.take())

    def noting(self, where: str) -> type[Processor]:
        """A processor that notes how each record reached it, and whether its value is an object noted before."""
        player = self

        class Noting(Processor):
            stores = ()

            def init(self, context: Context) -> None:
                self.context = context

            def process(self, record: Record) -> None:
                context, value = self.context, record.value
                same = any(value is one for one in player.values)
                player.values.append(value)
                note = {"at": where, "topic": context.topic, "task": context.task_id, "same_object": same}
                player.noted.append(note)
                context.forward(record)

        return Noting


def _counting() -> App:
    return App(NAME, stores=[KeyValueStore("counts", serde.string, serde.int64)])


def _on_the_way(player: Chains, app: App) -> None:
    (
        app.stream("in", key=serde.string, value=serde.json)
        .map_values(lambda value: (value, "a tuple"))
        .process(player.noting("first"), name="first")
        .process(player.noting("second"), name="second")
        .select_key(lambda _, value: value[0])
        .repartition("middle", key=serde.string, value=serde.json)
        .process(player.noting("third"), name="third")
    )


def _filtered(player: Chains, app: App) -> None:
    words = app.stream("lines").flat_map(lambda _, line: [(word, word) for word in line.split()])
    words = words.peek(lambda _, word: player.split_words.append(word)).filter(lambda _, word: len(word) > 1)
    words.repartition("words").peek(lambda _, word: player.noted.append(word))


def _broadcast(player: Chains, app: App) -> None:
    app.stream("rates").broadcast("all").process(player.noting("behind"))


RUNS = {"on_the_way": _on_the_way, "filtered": _filtered, "broadcast": _broadcast}
