"""Punctuation against its definition, which looks at every millisecond.

Rules of this file: the model has no queue and no arithmetic of next times; it finds due schedules by looking at each
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import event, given
from hypothesis import strategies as st

from standfast.stream.punctuation import Cancellable, PunctuationQueue

TIME_MAX_MS = 60


@dataclass(eq=False)
class Model:
    """By definition: a schedule is due at now if a millisecond of its grid lies after its last firing, up to now."""

    schedules: list[Modelled] = field(default_factory=list)

    def head(self, now_ms: int) -> Modelled | None:
        for at_ms in range(now_ms + 1):
            for schedule in self.schedules:
                if not schedule.cancelled and schedule.due_at(at_ms):
                    return schedule
        return None


@dataclass(eq=False)
class Modelled:
    first_ms: int
    interval_ms: int
    action: Action | None
    fired_ms: int = -1
    cancelled: bool = False

    def due_at(self, at_ms: int) -> bool:
        return at_ms > self.fired_ms and at_ms >= self.first_ms and (at_ms - self.first_ms) % self.interval_ms == 0


@dataclass(frozen=True)
class Make:
    first_ms: int
    interval_ms: int
    action: Action | None = None


@dataclass(frozen=True)
class Cancel:
    which: int


@dataclass(frozen=True)
class At:
    now_ms: int | None


@dataclass(frozen=True)
class Fail:
    pass


class Failed(Exception):
    pass


Action = Make | Cancel | Fail

MAKES = st.builds(Make, st.integers(0, TIME_MAX_MS), st.integers(1, 25))
CANCELS = st.builds(Cancel, st.integers(0, 8))
MAKES_WITH_ACTION = st.builds(
    Make,
    st.integers(0, TIME_MAX_MS),
    st.integers(1, 25),
    st.one_of(st.none(), CANCELS, MAKES, st.just(Fail())),
)
AT = st.builds(At, st.one_of(st.none(), st.integers(-1, TIME_MAX_MS)))


class Pair:
    """The queue and the model, driven side by side."""

    def __init__(self) -> None:
        self.queue = PunctuationQueue()
        self.handles: list[Cancellable] = []
        self.log: list[tuple[int, int]] = []
        self.model = Model()
        self.model_log: list[tuple[int, int]] = []

    def act(self, action: Action | None) -> None:
        """An action on the queue."""
        if isinstance(action, Make):
            number = len(self.handles)
            made = action

            def callback(now_ms: int) -> None:
                self.log.append((number, now_ms))
                self.act(made.action)

            self.handles.append(self.queue.schedule(action.first_ms, action.interval_ms, callback))
        elif isinstance(action, Cancel) and self.handles:
            self.handles[action.which % len(self.handles)].cancel()
        elif isinstance(action, Fail):
            raise Failed

    def act_on_model(self, action: Action | None) -> None:
        schedules = self.model.schedules
        if isinstance(action, Make):
            schedules.append(Modelled(action.first_ms, action.interval_ms, action.action))
        elif isinstance(action, Cancel) and schedules:
            schedules[action.which % len(schedules)].cancelled = True
        elif isinstance(action, Fail):
            raise Failed

    def fire_model(self, now_ms: int | None) -> int:
        count = 0
        while now_ms is not None and (head := self.model.head(now_ms)) is not None:
            head.fired_ms = now_ms
            self.model_log.append((self.model.schedules.index(head), now_ms))
            self.act_on_model(head.action)
            count += 1
        return count

    def at(self, now_ms: int | None) -> None:
        assert self.queue.can_punctuate(now_ms) == (now_ms is not None and self.model.head(now_ms) is not None)
        assert outcome(self.queue.may_punctuate, now_ms) == outcome(self.fire_model, now_ms)
        assert self.log == self.model_log

    def check_next_due(self) -> None:
        live = [schedule for schedule in self.model.schedules if not schedule.cancelled]
        reach = range(2 * TIME_MAX_MS)
        expected = next((at_ms for at_ms in reach if any(schedule.due_at(at_ms) for schedule in live)), None)
        assert self.queue.next_due_ms == expected


def outcome(fire: Callable[[int | None], int], now_ms: int | None) -> int | str:
    try:
        return fire(now_ms)
    except Failed:
        return "failed"


@given(st.lists(st.one_of(MAKES_WITH_ACTION, AT, AT, CANCELS), max_size=14))
def test_the_queue_fires_what_the_definition_says(steps: list[Make | At | Cancel]) -> None:
    pair = Pair()
    for step in steps:
        if isinstance(step, At):
            pair.at(step.now_ms)
        else:
            pair.act(step)
            pair.act_on_model(step)
        pair.check_next_due()
    event(f"fired: {min(len(pair.log), 3)}")


@given(
    first_ms=st.integers(0, TIME_MAX_MS),
    interval_ms=st.integers(1, 25),
    polls=st.sets(st.integers(0, TIME_MAX_MS)).map(sorted),
)
def test_a_poll_fires_if_a_grid_millisecond_lies_since_the_last_poll(
    first_ms: int, interval_ms: int, polls: list[int]
) -> None:
    grid = {t for t in range(first_ms, TIME_MAX_MS + 1) if (t - first_ms) % interval_ms == 0}
    queue = PunctuationQueue()
    queue.schedule(first_ms, interval_ms, lambda now_ms: None)
    last_ms = -1
    for now_ms in polls:
        assert queue.may_punctuate(now_ms) == any(t in grid for t in range(last_ms + 1, now_ms + 1))
        last_ms = now_ms
