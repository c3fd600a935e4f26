"""Each call into the Kafka client lies in a block that translates its errors, so that none leaves the product bare.

    client          a consumer, producer or admin client of confluent_kafka, one of the compiled module, or one of our
                    two thin interfaces over both (Feed, ProducerClient), whose errors are the client's
    block           `with client_errors()`, `with cluster.translating(...)`, `with errors(...)` of the compiled module
                    a lambda or partial given to a call of Cluster that has such a block (`run`, `reading`, ...)
                    for a ProducerClient also a `try` that catches KafkaException, or one of the STEPS within it

Rules of this file: it reads syntax trees alone. An expression is a client by its annotation, by the function that
returns it, or by its name where it may be anything. A planted source of each kind shows that the rule bites.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.syntax import nodes, parsed

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "replication" / "kafka"
OURS = {"Feed": "feed", "ProducerClient": "producer"}
CLIENTS = ("Consumer", "Producer", "AdminClient")
NAMED = {"client", "_client", "consumer", "_consumer", "asker", "_asker"}  # may be clients without an annotation
BLOCKS = {"client_errors", "translating", "errors", "_errors"}
TAKERS = {"run", "patiently", "reading", "answers", "_call"}
# Of a transaction or an append of the writer, whose one `try` is in their callers.
STEPS = {"_send_offsets", "_commit", "_deliver", "_round", "_produce"}
PLAIN = {"chunk", "client"}  # attributes that call nothing


def problems(path: str, text: str) -> Iterator[str]:
    """The calls of clients outside of every block."""
    parents = {child: node for node in nodes(text) for child in ast.iter_child_nodes(node)}
    kinds = _kinds(text)
    if not kinds:
        return
    known = _known(text, kinds)
    for node in nodes(text):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            kind, used = known.get(_name(node.value) or ""), node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            kind, used = known.get(_name(node.args[0]) or ""), "getattr"
        else:
            continue
        if kind is not None and used not in PLAIN and not _translated(node, parents, steps=kind == "ProducerClient"):
            yield f"{path}:{node.lineno}: {ast.unparse(node)[:60]} in no block that translates its errors"


def _kinds(text: str) -> dict[str, str]:
    """The classes of clients under their names in this file, with their kind: binding's own, or ours."""
    found = {}
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "confluent_kafka":
            found |= {one.asname or one.name: "binding" for one in node.names if one.name in CLIENTS}
        elif isinstance(node, ast.ImportFrom):
            last = (node.module or "").split(".")[-1]
            found |= {one.name: one.name for one in node.names if OURS.get(one.name) == last}
    # The compiled module has no classes to import; nor have clients that a Cluster makes, and an application's own.
    if re.search("native_calls import|kafka.cluster import|^Steps = ", text, re.MULTILINE):
        found[""] = "binding"
    return found


def _known(text: str, kinds: dict[str, str]) -> dict[str, str]:
    """Names of variables, attributes and functions that are clients, or return one."""
    known: dict[str, str] = dict.fromkeys(NAMED, "binding") if "binding" in kinds.values() else {}
    if "cluster" in text:
        known["admin"] = "binding"
    for node in nodes(text):
        annotation: ast.expr | None = None
        target = ""
        if isinstance(node, ast.arg):
            annotation, target = node.annotation, node.arg
        elif isinstance(node, ast.AnnAssign):
            annotation, target = node.annotation, _name(node.target) or ""
        elif isinstance(node, ast.FunctionDef):
            annotation, target = node.returns, node.name
        if annotation is None:
            continue
        written = ast.unparse(annotation).removesuffix(" | None")
        if written in kinds:
            known[target] = kinds[written]
        elif written not in ("Any", "object", "T"):
            known.pop(target, None)  # ours, by the same name
    for node in nodes(text):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _name(node.value.func) or ""
            if (kind := known.get(made) or kinds.get(made)) is not None:
                known |= {name: kind for one in node.targets if (name := _name(one))}
    return known


def _name(node: ast.expr) -> str | None:
    """The last name of `a`, `x.a` or `x.a()`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _translated(node: ast.AST, parents: dict[ast.AST, ast.AST], *, steps: bool) -> bool:
    deferred = False  # in a lambda: a block around that does not hold when it is called
    while (parent := parents.get(node)) is not None:
        if isinstance(parent, ast.Call) and node is not parent.func and _name(parent.func) in TAKERS:
            return True
        if isinstance(parent, ast.With) and not deferred and node in parent.body and _is_block(parent):
            return True
        if isinstance(parent, ast.Try) and steps and node in parent.body and _catches(parent):
            return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return steps and parent.name in STEPS
        deferred = deferred or isinstance(parent, ast.Lambda)
        node = parent
    return False


def _is_block(block: ast.With) -> bool:
    return any(_name(item.context_expr) in BLOCKS for item in block.items)


def _catches(block: ast.Try) -> bool:
    return any(one.type and re.search("KafkaException|BaseException", ast.unparse(one.type)) for one in block.handlers)


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def test_each_call_into_the_kafka_client_lies_in_a_block_that_translates_its_errors() -> None:
    found = [line for path in sources() for line in problems(path.name, path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_rule_sees_the_clients_of_every_file_that_has_some() -> None:
    seen = set()
    for path in sources():
        text = path.read_text(encoding="utf-8")
        bare = re.sub(r"\b(client_errors|translating|_?errors|run|patiently|reading|answers|_call)\(", "other(", text)
        if list(problems(path.name, bare)):
            seen.add(path.stem)
    assert seen >= {
        *("admin", "bounds", "clients", "cluster", "consumer", "feed", "group", "log", "members_topic"),
        *("native_feed", "native_producer", "producer", "reader", "survey", "writer"),
    }


HEAD = "from confluent_kafka import Consumer\n"


@pytest.mark.parametrize(
    "planted",
    [
        HEAD + "def f(one: Consumer):\n    one.poll(1)",
        HEAD + "def f(one: Consumer | None):\n    poll = one.poll",
        HEAD + "def f(cluster):\n    return cluster.admin.list_topics()",
        HEAD + "def f(self):\n    self._client.close()",
        HEAD + "def f(consumer, name):\n    return getattr(consumer, name)()",
        HEAD + "def f():\n    made = Consumer({})\n    made.poll(1)",
        HEAD + "def made() -> Consumer: ...\ndef f():\n    made().poll(1)",
        HEAD + "def f(one: Consumer):\n    with client_errors():\n        return lambda: one.poll(1)",
        HEAD + "def f(one: Consumer):\n    try:\n        one.poll(1)\n    except KafkaException:\n        pass",
        "from standfast.replication.kafka.feed import Feed\ndef f(feed: Feed):\n    feed.assign({})",
        "from standfast.replication.kafka.producer import ProducerClient\ndef f(one: ProducerClient):\n    one.begin()",
    ],
)
def test_planted_call_outside_of_every_block_is_found(planted: str) -> None:
    parsed(planted)
    assert len(list(problems("planted.py", planted))) == 1
