"""The topology as text: as Kafka Streams describes one, and as a Mermaid flowchart."""

from __future__ import annotations

import re

import standfast as sf

TEXT = sf.serde.string


def shop() -> sf.App:
    app = sf.App(
        "shop.web",
        stores=[sf.KeyValueStore("visits", TEXT, sf.serde.int64), sf.KeyValueStore("prices", TEXT, sf.serde.json)],
    )
    clicks = app.stream("clicks.raw-1", on_error="dead_letter", dead_letter="bad")
    clicks.select_key(lambda key, value: value).group_by_key().count("visits").to("out", name="to-out")
    orders = app.stream("orders", watermarks=sf.BoundedDisorder(0), late="late")
    orders.join(app.table("prices.v2", "prices"), lambda value, price: value).to("priced", name="to-priced")
    return app


AS_TEXT = """\
Topologies:
   Sub-topology: 0
    Source: clicks.raw-1-source (topics: [clicks.raw-1])
      --> select-key-1
    Processor: select-key-1 (stores: [])
      --> shop.web-visits-repartition-sink
      <-- clicks.raw-1-source
    Sink: shop.web-visits-repartition-sink (topic: shop.web-visits-repartition)
      <-- select-key-1

   Sub-topology: 1
    Source: shop.web-visits-repartition-source (topics: [shop.web-visits-repartition])
      --> visits-count
    Processor: visits-count (stores: [visits])
      --> to-out
      <-- shop.web-visits-repartition-source
    Sink: to-out (topic: out)
      <-- visits-count

   Sub-topology: 2
    Source: orders-source (topics: [orders])
      --> join-9
    Source: prices.v2-source (topics: [prices.v2])
      --> prices-table
    Processor: prices-table (stores: [prices])
      --> none
      <-- prices.v2-source
    Processor: join-9 (stores: [prices])
      --> to-priced
      <-- orders-source
    Sink: to-priced (topic: priced)
      <-- join-9
"""

AS_MERMAID = """\
flowchart LR
  topic0(["clicks.raw-1"])
  topic1(["orders"])
  topic2(["prices.v2"])
  topic3{{"shop.web-visits-repartition"}}
  topic4(["bad"])
  topic5(["out"])
  topic6(["priced"])
  topic7(["late"])
  subgraph sub0["Sub-topology 0"]
    node0["clicks.raw-1-source"]
    node1["select-key-1"]
    node2["shop.web-visits-repartition-sink"]
  end
  subgraph sub1["Sub-topology 1"]
    node3["shop.web-visits-repartition-source"]
    node4["visits-count"]
    node5["to-out"]
    store0[("visits")]
  end
  subgraph sub2["Sub-topology 2"]
    node6["orders-source"]
    node7["prices.v2-source"]
    node8["prices-table"]
    node9["join-9"]
    node10["to-priced"]
    store1[("prices")]
  end
  topic0 --> node0
  node0 -. dead letters .-> topic4
  node0 --> node1
  node1 --> node2
  node2 --> topic3
  topic3 --> node3
  node3 --> node4
  node4 --> node5
  node4 -.- store0
  node5 --> topic5
  topic1 --> node6
  node6 -. late .-> topic7
  topic2 --> node7
  node7 --> node8
  node6 --> node9
  node9 --> node10
  node8 -.- store1
  node9 -.- store1
  node10 --> topic6
"""


def test_topology_prints_as_kafka_streams_describes_one() -> None:
    assert str(shop().topology()) == AS_TEXT


def test_topology_draws_itself_in_mermaid() -> None:
    assert shop().topology().to_mermaid() == AS_MERMAID


LINE = re.compile(
    r'\w+(\["[^"]+"\]|\(\["[^"]+"\]\)|\[\("[^"]+"\)\]|\{\{"[^"]+"\}\})'  # a node with its shape
    r"|\w+ (-->|-\.-|-\. [a-z ]+ \.->) \w+"  # a connection
    r'|subgraph \w+\["[^"]+"\]|end'
)


def test_mermaid_ids_are_words_and_names_stand_in_quotes() -> None:
    first, *lines = shop().topology().to_mermaid().splitlines()
    assert first == "flowchart LR"
    assert [line for line in lines if not LINE.fullmatch(line.strip())] == []
    declared = re.findall(r"^ +(\w+)[\[({]", "\n".join(lines), re.M)
    assert len(declared) == len(set(declared))
    used = {word for line in lines if "-" in line for word in re.findall(r"(?:topic|node|store)\d+\b(?!\[)", line)}
    assert used == {word for word in declared if not word.startswith("sub")}
