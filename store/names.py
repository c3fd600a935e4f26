"""Checks of the names that a user gives: applications, stores, topics; and lists of names within an error.

    few(["a", "b"])         "a, b"
    few(thirteen names)     the first ten "and 3 more": a cluster may have thousands of topics

Rules of this file: a name that passes cannot leave the state directory and is a legal topic name.
Source of the limits: Kafka's topic name rules (249 characters of [A-Za-z0-9._-], not "." or "..").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from standfast.store.errors import InvalidRequest

NAME_LENGTH_MAX = 128
NAMED_MAX = 10
TOPIC_LENGTH_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_name(kind: str, name: str) -> str:
    """Return `name` if it may name a `kind` (application, store, instance, ...), else raise InvalidRequest."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{kind} name {name!r} is not usable: use 1 to {NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ - "
            "and begin with a letter, a digit or _"
        )
    return name


def is_topic(name: object) -> bool:
    """Whether a topic can have this name."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_topic(name: str) -> str:
    """Return `name` if it may name a topic, else raise InvalidRequest."""
    if not is_topic(name):
        raise InvalidRequest(
            f"topic name {name!r} is not usable: use 1 to {TOPIC_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -"
        )
    return name


def setting_problems(what: str, settings: Mapping[str, str]) -> list[str]:
    """Problems of a topic's settings with a name, or a value, that no log could take or show."""
    return [
        f"{what}: setting {name!r:.100} is not usable: a name has the characters A-Z a-z 0-9 . _ -, as cleanup.policy"
        for name in settings
        if not is_topic(name)
    ] + [
        f"{what}: the value of {name!r:.100} has a character that is none of text: {value!r:.100}"
        for name, value in settings.items()
        if not value.isprintable()
    ]


def changelog_topic(app: str, store: str) -> str:
    """`<app>-<store>-changelog`, the name that Kafka Streams gives it (ProcessorStateManager.storeChangelogTopic)."""
    return check_topic(f"{app}-{store}-changelog")


def few(names: Iterable[object], separator: str = ", ") -> str:
    """The first of these names, or sentences, and the number of the others; "" for none."""
    given = [str(name) for name in names]
    more = f" and {len(given) - NAMED_MAX} more" if len(given) > NAMED_MAX else ""
    return separator.join(given[:NAMED_MAX]) + more


def printable(text: object) -> str:
    """A text in one line of a terminal: control characters and halves of pairs as escapes."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text))
