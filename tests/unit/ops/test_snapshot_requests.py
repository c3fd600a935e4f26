"""Two commands that ask for a checkpoint at once: the topic keeps the last request, and both get its answer."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from standfast.ops.cli.state.snapshot_checkpoint import ask
from standfast.replication.placement.checkpoint import Order, OrderState, Request
from standfast.replication.placement.records import PlacementState
from standfast.replication.placement.topic import PlacementTopic
from standfast.store.clock import SystemClock
from support.placed import PlacedLog


def test_a_request_that_another_one_replaces_is_answered_with_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PlacedLog(f"sqlite:///{tmp_path}/log", "app")) as placed:
        placed.write_example()
        look, requests = PlacementTopic.look, []

        def looked(self: PlacementTopic) -> PlacementState:
            found = look(self)
            if self is placed.topic or found.request is None:
                return found
            requests.append(found.request.id)
            if len(requests) == 1:
                placed.topic.ask(Request("second", SystemClock().wall_ms(), 60_000))
            if len(requests) == 2:  # by then the leader knows no other request
                placed.topic.order(Order(7, 9, OrderState.COMPLETE, request="second"), None)
            return found

        monkeypatch.setattr(PlacementTopic, "look", looked)
        order = ask(placed.log, "app", 5.0)
        assert (order.number, order.request, order.state) == (7, "second", OrderState.COMPLETE)
        assert requests[0] != requests[1] == "second"
