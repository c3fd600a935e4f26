"""The topology: the split of nodes into sub-topologies, their numbers of partitions, refusals, and its text."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.stream.topology.sources import SourceSettings
from standfast.stream.topology.topology import Topology, TopologyBuilder

TEXT = sf.serde.string
READ = SourceSettings(key=TEXT, value=TEXT)
ONE, TWO, THREE = (sf.KeyValueStore(name, TEXT, TEXT) for name in ("one", "two", "three"))


def builder(*specs: Any) -> TopologyBuilder:
    return TopologyBuilder("app", specs)


def chain(made: TopologyBuilder, topic: str, name: str, *stores: str) -> str:
    """A source and a processor below it."""
    return made.add_processor(name, sf.Processor, [made.add_source(topic, READ)], stores)


def nodes_of(topology: Topology | TopologyBuilder) -> list[list[str]]:
    groups = topology.groups if isinstance(topology, Topology) else topology.sub_topologies()
    return [[node.name for node in group.nodes] for group in groups]


# --- groups ---


def test_nodes_that_are_connected_are_one_group() -> None:
    made = builder()
    chain(made, "a", "first")
    made.add_processor("second", sf.Processor, ["first"])
    made.add_sink("out-sink", "out", ["second"], TEXT, TEXT)
    assert nodes_of(made) == [["a-source", "first", "second", "out-sink"]]


def test_nodes_without_a_connection_are_groups_of_their_own() -> None:
    made = builder()
    chain(made, "a", "first")
    chain(made, "b", "second")
    assert nodes_of(made) == [["a-source", "first"], ["b-source", "second"]]


def test_a_shared_store_makes_one_group() -> None:
    made = builder(ONE)
    chain(made, "a", "first", "one")
    chain(made, "b", "second", "one")
    (group,) = made.sub_topologies()
    assert group.topics == {"a", "b"}
    assert group.specs == (ONE,)
    assert group.connected == {"first": ("one",), "second": ("one",)}


def test_a_third_node_joins_two_groups_that_came_before_it() -> None:
    made = builder(ONE, TWO)
    chain(made, "a", "first", "one")
    chain(made, "b", "second", "two")
    chain(made, "c", "third", "one", "two")
    (group,) = made.sub_topologies()
    assert group.topics == {"a", "b", "c"}


def test_an_internal_topic_divides_groups() -> None:
    made = builder()
    chain(made, "a", "first")
    source = made.add_exchange("x", "repartition", ["first"], TEXT, TEXT)
    made.add_processor("second", sf.Processor, [source])
    assert nodes_of(made) == [
        ["a-source", "first", "app-x-repartition-sink"],
        ["app-x-repartition-source", "second"],
    ]


def test_topic_from_outside_that_is_written_and_read_divides_groups_too() -> None:
    made = builder()
    chain(made, "a", "first")
    made.add_sink("mid-sink", "mid", ["first"], TEXT, TEXT)
    chain(made, "mid", "second")
    topology = made.build({"a": 1, "mid": 3})
    assert [group.partitions for group in topology.groups] == [1, 3]
    assert topology.internal == ()


def test_groups_are_numbered_by_their_first_node() -> None:
    made = builder()
    chain(made, "a", "first")
    chain(made, "b", "second")
    source = made.add_exchange("x", "repartition", ["second"], TEXT, TEXT)
    made.add_processor("both", sf.Processor, ["first", source])
    assert [sorted(group.topics) for group in made.sub_topologies()] == [["a", "app-x-repartition"], ["b"]]


def test_group_numbers_stay_when_a_program_is_built_again_and_when_nodes_are_added_at_the_end() -> None:
    def program(more: bool) -> TopologyBuilder:
        made = builder(ONE)
        chain(made, "a", "first")
        chain(made, "b", "second", "one")
        if more:
            chain(made, "c", "third", "one")
            chain(made, "d", "fourth")
        return made

    assert nodes_of(program(False)) == nodes_of(program(False))
    before, after = program(False).sub_topologies(), program(True).sub_topologies()
    assert [group.topics for group in before] == [{"a"}, {"b"}]
    assert [group.topics for group in after] == [{"a"}, {"b", "c"}, {"d"}]


def test_parents_come_first_even_if_they_were_added_later() -> None:
    made = builder()
    chain(made, "a", "first")
    made.connect("first", made.add_source("b", READ))
    (group,) = made.sub_topologies()
    assert [node.name for node in group.nodes] == ["a-source", "b-source", "first"]
    assert group.processors[0].parents == ("a-source", "b-source")


def test_connecting_the_same_input_twice_changes_nothing() -> None:
    made = builder()
    chain(made, "a", "first")
    made.connect("first", "a-source")
    assert made.sub_topologies()[0].processors[0].parents == ("a-source",)


# --- stores ---


def test_processor_that_names_no_stores_has_those_that_nobody_names() -> None:
    made = builder(ONE, TWO, THREE)
    made.add_processor("any", sf.Processor, [made.add_source("a", READ)], None)
    chain(made, "b", "named", "two")
    first, second = made.sub_topologies()
    assert first.connected == {"any": ("one", "three")}
    assert second.connected == {"named": ("two",)}


def test_stores_that_nobody_uses_belong_to_the_first_group() -> None:
    made = builder(ONE, TWO, THREE)
    chain(made, "a", "first", "two")
    chain(made, "b", "second", "one")
    first, second = made.sub_topologies()
    assert first.specs == (TWO, THREE)
    assert second.specs == (ONE,)


def test_processor_with_timers_has_a_store_for_them() -> None:
    made = builder(ONE)
    made.add_processor("late", sf.Processor, [made.add_source("a", READ)], ["one"], TEXT)
    (group,) = made.sub_topologies()
    assert group.connected == {"late": ("one", "late-timers")}
    assert [spec.name for spec in group.specs] == ["one", "late-timers"]


def test_declared_store_that_is_called_as_a_processors_timers_is_refused() -> None:
    made = builder(sf.KeyValueStore("late-timers", TEXT, TEXT))
    with pytest.raises(sf.BadConfig, match="its timers need the store name 'late-timers': rename yours"):
        made.add_processor("late", sf.Processor, [made.add_source("a", READ)], (), TEXT)


def test_unknown_stores_are_all_told_and_nothing_is_added() -> None:
    made = builder(ONE)
    source = made.add_source("a", READ)
    with pytest.raises(sf.BadConfig) as refused:
        made.add_processor("first", sf.Processor, [source], ["one", "nope", "neither"])
    assert [problem.split(" is not")[0] for problem in refused.value.problems] == [
        "processor 'first': store 'nope'",
        "processor 'first': store 'neither'",
    ]
    assert "first" not in made.nodes


# --- names and sources ---


def test_name_that_is_taken_is_refused() -> None:
    made = builder()
    chain(made, "a", "first")
    with pytest.raises(sf.BadConfig, match="'first' exists already"):
        made.add_processor("first", sf.Processor, ["a-source"])
    with pytest.raises(sf.BadConfig, match="'first' exists already"):
        made.add_sink("first", "out", ["a-source"], TEXT, TEXT)


@pytest.mark.parametrize("parents", [["nobody"], []])
def test_node_needs_parents_that_are_there(parents: list[str]) -> None:
    made = builder()
    with pytest.raises(sf.BadConfig, match="is not a node to connect to"):
        made.add_processor("first", sf.Processor, parents)


def test_node_name_that_is_no_name_is_refused() -> None:
    made = builder()
    made.add_source("a", READ)
    with pytest.raises(sf.InvalidRequest, match="node name 'a/b' is not usable"):
        made.add_processor("a/b", sf.Processor, ["a-source"])


def test_same_topic_with_equal_settings_is_one_node() -> None:
    made = builder()
    chain(made, "a", "first")
    chain(made, "a", "second")
    assert nodes_of(made) == [["a-source", "first", "second"]]


@pytest.mark.parametrize(
    "other",
    [
        SourceSettings(key=TEXT, value=sf.serde.json),
        SourceSettings(key=TEXT, value=TEXT, on_error="skip"),
        SourceSettings(key=TEXT, value=TEXT, timestamp=lambda record: 0),
    ],
)
def test_same_topic_with_other_settings_is_refused(other: SourceSettings) -> None:
    made = builder()
    made.add_source("a", READ)
    with pytest.raises(sf.BadConfig, match="source 'a': it is read already, with other settings"):
        made.add_source("a", other)


def test_every_problem_of_a_source_is_told_at_once() -> None:
    bad: dict[str, Any] = {
        "invalid_timestamp": "ignore", "on_error": "give up", "dead_letter": "no/topic", "late": "late",
        "idle_after_ms": 0, "timestamp": 7, "timestamp_max_ms": -1,
    }  # fmt: skip
    with pytest.raises(sf.BadConfig) as refused:
        builder().add_source("a", SourceSettings(key="text", value=TEXT, **bad))  # type: ignore[arg-type]
    told = "; ".join(refused.value.problems)
    for part in ("key must be a serde", "invalid_timestamp must", "on_error must", "timestamp must", "dead_letter: ",
                 "belong together", "late needs watermarks", "idle_after_ms must", "timestamp_max_ms"):  # fmt: skip
        assert part in told


def test_application_without_a_source_is_refused() -> None:
    with pytest.raises(sf.BadConfig, match="application 'app' has no source"):
        builder().build({})


def test_longest_topic_name_can_be_read_and_written() -> None:
    made = builder()
    long = "t" * 249
    made.add_sink(f"{long}-sink", long, [made.add_source(long, READ)], TEXT, TEXT)
    assert made.build({long: 1}).output_topics == (long,)


# --- several @app.source on one class ---


def test_several_sources_on_one_class_are_inputs_of_one_processor() -> None:
    app = sf.App("app")

    @app.source("a")
    @app.source("b")
    @app.source("a")
    class Board(sf.Processor):
        pass

    (group,) = app.topology().groups
    assert [node.name for node in group.nodes] == ["a-source", "b-source", "Board"]
    assert group.processors[0].parents == ("a-source", "b-source")


def test_two_classes_of_one_name_are_not_taken_for_one() -> None:
    app = sf.App("app")
    first, second = (type("Board", (sf.Processor,), {}) for _ in range(2))
    app.source("a")(first)
    with pytest.raises(sf.BadConfig, match="'Board' exists already"):
        app.source("b")(second)


def test_sink_below_the_source_in_the_program_is_refused() -> None:
    app = sf.App("app")
    with pytest.raises(sf.BadConfig, match="Board is not a node"):

        @app.source("a")
        @app.sink("out")
        class Board(sf.Processor):
            pass


# --- partitions ---


def rekeyed(made: TopologyBuilder, topic: str, name: str, partitions: int = 0) -> str:
    return made.add_exchange(name, "repartition", [chain(made, topic, f"key-{topic}")], TEXT, TEXT, partitions)


def test_group_has_as_many_partitions_as_its_topics() -> None:
    made = builder()
    made.add_processor("both", sf.Processor, [made.add_source("a", READ), made.add_source("b", READ)])
    assert made.build({"a": 3, "b": 3}).groups[0].partitions == 3


def test_topics_processed_together_need_equal_counts() -> None:
    made = builder()
    made.add_processor("both", sf.Processor, [made.add_source("a", READ), made.add_source("b", READ)])
    with pytest.raises(sf.BadConfig, match=r"equal partition counts, but a has 3, b has 2: put \.repartition"):
        made.build({"a": 3, "b": 2})


def test_internal_topic_has_as_many_partitions_as_its_writers() -> None:
    made = builder()
    made.add_processor("after", sf.Processor, [rekeyed(made, "a", "x")])
    topology = made.build({"a": 4})
    assert (topology.internal[0].partitions, topology.groups[1].partitions) == (4, 4)


def test_internal_topic_has_the_largest_count_of_its_writers() -> None:
    for first, second in ((2, 5), (5, 2)):
        made = builder()
        rekeyed(made, "a", "x")
        made.add_processor("after", sf.Processor, [rekeyed(made, "b", "x")])
        assert made.build({"a": first, "b": second}).internal[0].partitions == 5


def test_internal_topic_waits_until_all_its_writers_counts_are_known() -> None:
    made = builder()
    rekeyed(made, "a", "y")
    later = made.add_processor("later", sf.Processor, [rekeyed(made, "b", "x")])
    made.add_processor("after", sf.Processor, [made.add_exchange("y", "repartition", [later], TEXT, TEXT)])
    counts = {one.name: one.partitions for one in made.build({"a": 2, "b": 6}).internal}
    assert counts == {"app-x-repartition": 6, "app-y-repartition": 6}


def test_internal_topic_has_the_partitions_that_it_is_given() -> None:
    made = builder()
    made.add_processor("after", sf.Processor, [rekeyed(made, "a", "x", 7)])
    topology = made.build({"a": 2})
    assert [group.partitions for group in topology.groups] == [2, 7]


def test_internal_topic_read_with_others_has_their_count() -> None:
    made = builder()
    made.add_processor("both", sf.Processor, [rekeyed(made, "a", "x"), made.add_source("b", READ)])
    topology = made.build({"a": 2, "b": 5})
    assert topology.internal[0].partitions == 5


def test_given_count_that_does_not_fit_the_others_is_refused() -> None:
    made = builder()
    made.add_processor("both", sf.Processor, [rekeyed(made, "a", "x", 3), made.add_source("b", READ)])
    with pytest.raises(sf.BadConfig, match="app-x-repartition has 3, b has 5"):
        made.build({"a": 2, "b": 5})


def test_one_internal_topic_with_two_counts_is_refused() -> None:
    made = builder()
    rekeyed(made, "a", "x", 3)
    with pytest.raises(sf.BadConfig, match="repartition 'x' is declared with 3 and with 4 partitions"):
        rekeyed(made, "b", "x", 4)


def test_counts_pass_through_a_chain_of_internal_topics() -> None:
    made = builder()
    second = made.add_processor("second", sf.Processor, [rekeyed(made, "a", "x")])
    source = made.add_exchange("y", "broadcast", [second], TEXT, TEXT)
    made.add_processor("third", sf.Processor, [source])
    topology = made.build({"a": 3})
    assert [group.partitions for group in topology.groups] == [3, 3, 3]
    assert [one.name for one in topology.internal] == ["app-x-repartition", "app-y-broadcast"]


def test_topics_that_feed_each_other_in_a_circle_are_counted_too() -> None:
    made = builder()
    source = rekeyed(made, "a", "x")
    made.add_processor("round", sf.Processor, [source])
    made.add_exchange("x", "repartition", ["round"], TEXT, TEXT)
    assert [group.partitions for group in made.build({"a": 3}).groups] == [3, 3]


def test_what_is_sent_to_one_internal_topic_twice_from_one_node_goes_there_once() -> None:
    made = builder()
    chain(made, "a", "first")
    sources = {made.add_exchange("x", "repartition", ["first"], TEXT, TEXT) for _ in range(2)}
    assert sources == {"app-x-repartition-source"}
    assert len(made.sub_topologies()[0].sinks) == 1
