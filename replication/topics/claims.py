"""Claims of internal topics: no two applications share one, although the names of both fit it.

    orders-eu-x-changelog    store `eu-x` of `orders`, or store `x` of `orders-eu`

    note ("claim", topic)             the application has the topic of this id: a note of its group, written once
    note ("ask", instance/topic)      an instance looks whether it may claim the topic; void after a minute

    claim of its own ──────────────────────────────> look ──> start
    none ──> ask ──> look (wait for earlier asks) ──> claim ──> look ──> start

A start looks at the applications that a dash in the topic's name could mean, and is refused where one of them has
claimed the same topic id. Of two that ask at once, the first by name waits for the end of the other's ask, and the
other one gives up. Each writes before it looks, so of two at most one finds no other. An ask, unlike a claim, leaves
nothing that stops another application for good: one that is refused, or killed before its claim, has no topic.

The last look is for an instance that stood still for longer than its ask counts, and claimed then: both have a claim
after that, both are refused, and neither runs. Claims are never withdrawn by a start, since another instance of the
same application may rely on it by then.

Rules of this file: a topic id that is gone makes a claim void. Notes that this login may not read, and those of
programs without notes (versions before them, Kafka Streams), claim nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

from standfast.replication.log import Group, Log, Notes
from standfast.replication.shapes import Shape, dump, read
from standfast.replication.topics.app_topics import BETWEEN, CHANGELOG, is_internal
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, StandfastError
from standfast.store.failpoint import reach
from standfast.store.names import NAME_LENGTH_MAX

CLAIM, ASK = "claim", "ask"  # kinds of notes
ASK_MS = 60_000  # an older ask is that of an instance which was killed
WAIT_MS, LOOK_MS = 5_000, 50  # for the end of another application's ask, which takes some milliseconds
PLAIN = "plain"
SORTED = "sorted"
T = TypeVar("T")


class Claim(Shape, frozen=True, forbid_unknown_fields=False):
    """The claim of a topic. `keys`: the form of its records' keys, `plain` or with the times of `window`, `session`.

    ` sorted` behind it: keys of `serde.json` are in their sorted form. That is settled by the first claim of a topic.
    """

    topic_id: str
    kind: str
    keys: str = PLAIN

    @property
    def is_sorted(self) -> bool:
        """Whether keys of `serde.json` are in their sorted form."""
        return self.keys.endswith(f" {SORTED}")

    def as_kept(self, kept: bool) -> Claim:
        """The claim with the form of keys that the topic has, sorted or not."""
        plain = self.keys.removesuffix(f" {SORTED}")
        return Claim(self.topic_id, self.kind, f"{plain} {SORTED}" if kept else plain)


class Ask(Shape, frozen=True, forbid_unknown_fields=False):
    """The ask for a topic."""

    topic_id: str


class Rival(NamedTuple):
    """Another application with a claim of the same topic, or that asks for it at this moment."""

    topic: str
    app: str
    asks: bool


class Claims:
    """The claims of one application, as one of its instances makes them.

    `is_new` says of a topic without a claim whether its keys may get the sorted form that its claim asks for.
    """

    def __init__(
        self,
        app: str,
        log: Log,
        group: Group,
        instance: str,
        clock: Clock,
        is_new: Callable[[str], bool] = lambda topic: True,
    ) -> None:
        self._app = app
        self._log = log
        self._group = group
        self._instance = instance
        self._clock = clock
        self._is_new = is_new
        self._taken: dict[str, Claim] = {}

    def take(self, topics: Mapping[str, Claim]) -> None:
        """Claim these topics, which exist. Raises BadConfig with every one that another application has claimed."""
        topics = {name: claim for name, claim in topics.items() if not _same(self._taken.get(name), claim)}
        if not topics:
            return
        topics, mine = self._with_forms(topics)
        new = {one: claim for one, claim in topics.items() if one not in mine or mine[one].topic_id != claim.topic_id}
        if shared := {name: claim for name, claim in sorted(new.items()) if other_readings(self._app, name)}:
            self._ask(shared)
        self._refuse(self._rivals(topics, None))
        # Those whose name no other application fits, and those whose kind has changed.
        self._group.note(
            _texts({name: one for name, one in topics.items() if name not in shared and mine.get(name) != one})
        )
        self._taken |= topics

    def is_sorted(self, topic: str) -> bool:
        """Whether keys of `serde.json` in a topic, which is claimed, have their sorted form."""
        return topic in self._taken and self._taken[topic].is_sorted

    def are_sorted_or_new(self, topics: Mapping[str, str]) -> bool:
        """Whether each of these topics (name -> topic id) has that form, or has no claim and is new."""
        new = {name for name in topics if self._is_new(name)}
        mine = claims_of(self._group.notes())
        kept = {name for name, topic_id in topics.items() if name in mine and mine[name].topic_id == topic_id}
        return all(mine[name].is_sorted if name in kept else name in new for name in topics)

    def _with_forms(self, topics: Mapping[str, Claim]) -> tuple[dict[str, Claim], dict[str, Claim]]:
        """These claims, each with the form of keys that its topic has or gets, and the claims that are made already."""
        mine = claims_of(self._group.notes())
        new: set[str] = set()
        if open_ := [name for name, one in topics.items() if one.is_sorted and not _same(mine.get(name), one)]:
            new = {name for name in open_ if self._is_new(name)}
            mine = claims_of(self._group.notes())  # again: another instance claims before its first record
        return {
            name: one.as_kept(mine[name].is_sorted if _same(mine.get(name), one) else name in new)
            for name, one in topics.items()
        }, mine

    def _ask(self, new: Mapping[str, Claim]) -> None:
        """Ask for topics, and claim them."""
        asks: dict[tuple[str, str], str | None] = {
            (ASK, f"{self._instance}/{name}"): dump(Ask(claim.topic_id)).decode() for name, claim in new.items()
        }
        done: dict[tuple[str, str], str | None] = dict.fromkeys(asks)
        self._group.note(asks)
        reach("claims.asked")
        try:
            own = self._group.notes()
            since_ms = min((own[ask].at_ms for ask in asks if ask in own), default=0) - ASK_MS
            self._refuse(self._settled(new, since_ms))
        except BaseException:
            with suppress(StandfastError):  # the first error counts, and an ask is void after its time
                self._group.note(done)
            raise
        reach("claims.looked")
        # The claims first: a reader that sees the ask no more sees the claim.
        self._group.note(_texts(new) | done)
        reach("claims.claimed")

    def _settled(self, new: Mapping[str, Claim], since_ms: int) -> list[Rival]:
        """The rivals, once no application later by name asks for the same topics, or it takes too long."""
        deadline_ms = self._clock.monotonic_ms() + WAIT_MS
        while True:
            rivals = self._rivals(new, since_ms)
            waits = all(one.asks and one.app > self._app for one in rivals)
            if not rivals or not waits or self._clock.monotonic_ms() >= deadline_ms:
                return rivals
            self._clock.sleep_ms(LOOK_MS)

    def _rivals(self, topics: Mapping[str, Claim], since_ms: int | None) -> list[Rival]:
        return rivals(self._log, self._app, {name: claim.topic_id for name, claim in topics.items()}, since_ms)

    def _refuse(self, rivals: Iterable[Rival]) -> None:
        problems = [refusal(self._app, one) for one in rivals]
        if problems:
            raise BadConfig(problems)


def _same(one: Claim | None, other: Claim) -> bool:
    """Whether both are claims of one topic."""
    return one is not None and one.topic_id == other.topic_id


def claim_of(topic: str, topic_id: str, keys: str = PLAIN) -> Claim:
    """The claim of an internal topic."""
    suffix = next((one for one in (CHANGELOG, *BETWEEN) if topic.endswith(one)), "-topic")
    return Claim(topic_id, suffix[1:], keys)


def other_readings(app: str, topic: str) -> list[str]:
    """The other applications whose internal topic this could be, by its name."""
    names = (topic[:at] for at, sign in enumerate(topic) if sign == "-")
    return [one for one in names if 0 < len(one) <= NAME_LENGTH_MAX and one != app and is_internal(f"{one}-", topic)]


def claims_of(notes: Notes) -> dict[str, Claim]:
    """The claims among the notes of a group, by topic."""
    found = {name: _read(note.text, Claim) for (kind, name), note in notes.items() if kind == CLAIM}
    return {name: claim for name, claim in found.items() if claim is not None}


def sorted_in(log: Log, app: str, topics: Mapping[str, str]) -> set[str]:
    """Those topics of an application (name -> topic id) whose claims say that their keys are sorted."""
    claims = claims_of(log.notes_of([app])[app] or {}) if topics else {}
    found = {name: claims[name] for name in topics if name in claims}
    return {name for name, claim in found.items() if claim.is_sorted and claim.topic_id == topics[name]}


def rivals(log: Log, app: str, topics: Mapping[str, str], since_ms: int | None = None) -> list[Rival]:
    """Other applications that claim these very topics (name -> id), or have asked for them since (None: no asks)."""
    apps = {name: other_readings(app, name) for name in topics}
    names = sorted({one for found in apps.values() for one in found})
    found = log.notes_of(names) if names else {}
    return [
        Rival(name, one, asks)
        for name, topic_id in sorted(topics.items())
        for one in apps[name]
        for asks in _about(found.get(one) or {}, name, topic_id, since_ms)
    ]


def claimants(log: Log, app: str, topics: Mapping[str, str]) -> dict[str, str]:
    """The application that claims each of these topics (name -> topic id), this one or another that its name fits."""
    others = {name: other_readings(app, name) for name in topics}
    found = log.notes_of(sorted({app, *(one for apps in others.values() for one in apps)}))
    claims = {one: claims_of(notes or {}) for one, notes in found.items()}
    return {
        name: one
        for name, topic_id in topics.items()
        for one in (app, *others[name])
        if (claim := claims[one].get(name)) is not None and claim.topic_id == topic_id
    }


def refusals(log: Log, app: str, topics: Mapping[str, str]) -> list[str]:
    """Why an application may not have these topics (name -> id), as far as others have claimed them."""
    return [refusal(app, one) for one in rivals(log, app, topics)]


def refusal(app: str, rival: Rival) -> str:
    """Why an application may not have a topic, and the ways out."""
    topic, other, asks = rival
    if asks:
        return (
            f"application {other!r} starts at this moment, and its name and that of {app!r} both fit topic {topic}: "
            f"only one of them can have it: give {app!r} another name, or the store or step; or start again in a "
            f"minute, if {other!r} does not use it"
        )
    return (
        f"topic {topic} belongs to application {other!r}, which has claimed it, and the names of {app!r} fit it as "
        f"well: each would read and overwrite the rows of the other. Give {app!r} another name, or the store or step; "
        f"if {other!r} is not used any more, `standfast reset --app {other}` deletes it with its claims; if the topic "
        f"is that of {app!r} after all, `standfast topic release {topic} --app {other}` ends the claim alone"
    )


def _texts(claims: Mapping[str, Claim]) -> dict[tuple[str, str], str | None]:
    return {(CLAIM, name): dump(claim).decode() for name, claim in claims.items()}


def _about(notes: Notes, topic: str, topic_id: str, since_ms: int | None) -> Iterator[bool]:
    """Whether each claim (False) or ask (True) of a topic is one."""
    claim = notes.get((CLAIM, topic))
    if claim is not None and (found := _read(claim.text, Claim)) is not None and found.topic_id == topic_id:
        yield False
    if since_ms is None:
        return
    for (kind, name), note in notes.items():
        if kind == ASK and name.rpartition("/")[2] == topic and note.at_ms >= since_ms:
            ask = _read(note.text, Ask)
            if ask is not None and ask.topic_id == topic_id:
                yield True
                return


def _read(text: str, kind: type[T]) -> T | None:
    """A note's content; None for text that no claim has: it proves nothing about a topic."""
    try:
        return read(text, kind)
    except ValueError:
        return None
