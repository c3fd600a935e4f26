"""The applications whose internal topic a name could be."""

from __future__ import annotations

import pytest

from standfast.replication.topics.claims import claim_of, other_readings


@pytest.mark.parametrize(
    ("topic", "apps"),
    [
        ("orders-totals-changelog", []),
        ("orders-eu-x-changelog", ["orders-eu"]),
        ("orders-eu-x-y-repartition", ["orders-eu", "orders-eu-x"]),
        ("orders-eu-rates-source-offsets", ["orders-eu"]),
        ("orders-eu-x-broadcast", ["orders-eu"]),
        ("orders--x-changelog", ["orders-"]),
        ("orders-standfast-members", []),  # a suffix that one name alone fits
        ("orders-standfast-placement", []),
        ("orders-eu-x", []),
    ],
)
def test_every_dash_is_a_reading_and_the_suffix_is_none(topic: str, apps: list[str]) -> None:
    assert other_readings("orders", topic) == apps


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders-x-changelog", "changelog"),
        ("orders-x-repartition", "repartition"),
        ("orders-x-broadcast", "broadcast"),
        ("orders-x-source-offsets", "source-offsets"),
        ("orders-x-subscription-response-topic", "subscription-response-topic"),
    ],
)
def test_a_claim_says_the_kind_of_its_topic(topic: str, kind: str) -> None:
    assert claim_of(topic, "id").kind == kind
