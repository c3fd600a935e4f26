"""Watermarks: how a source generates them, and how a task's clock follows its inputs.

    records of a partition ──> assigner ──> SourceWatermarks ──┐
                                            (monotone, idle)   ├──> WatermarkValve ──> AdvanceClock, FireTimers, Send
    signals of upstream tasks, over a repartition topic ───────┘    (the task's clock)

A watermark w says that no record with a timestamp at or before w is expected any more; a record that still comes is
late. The task's clock is the smallest watermark over the inputs that count:

    input             counts     its watermark
    active            yes        holds the clock back until it is known and past the clock
    idle              no         is ignored until the input is active again
    active, behind    no         after idleness, behind the clock: counts once it has caught up

An input that goes idle matters only if it held the clock: counted, with its watermark unknown or equal to the clock.
Then the clock follows the inputs that still count; if none is active any more, it first goes to the largest watermark
of all inputs, because nothing else could ever bring it there. An input that is active again moves nothing before its
next watermark. These are Flink's rules (StatusWatermarkValve); an unknown watermark, Flink's smallest number, is None
here: no record is late, no timer is due.

Rules of this file: pure; no log, store, thread or clock; `now_ms` comes in. Watermarks and the clock never go back.
The caller processes a record first, then carries out the steps of its watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from standfast.store.arguments import checked, unchecked
from standfast.store.errors import InvalidRequest
from standfast.store.names import few

PROGRESS_PREFIX = "watermark:"  # before the names of a state among a task's progress numbers
CLOCK_KEY = "task"  # in a state: the clock itself; channels hold a slash, so none equals it


class Channel(NamedTuple):
    """One input of a task: a partition key such as `flights/0`, and the upstream task that writes there, if any.

    Written `topic/0` for a source and `topic/0@0_3` for upstream task 0_3: each upstream task has its own watermark.
    """

    partition: str
    upstream: str = ""

    def __str__(self) -> str:
        return f"{self.partition}@{self.upstream}" if self.upstream else self.partition

    @classmethod
    def parse(cls, text: str) -> Channel:
        """Inverse of str(); neither a topic nor a task id can hold an @."""
        partition, _, upstream = text.partition("@")
        return cls(partition, upstream)


# --- signals from a source or an upstream task to a valve ---


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record at or before this time is expected any more."""

    watermark_ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The input does not hold the clock back until it is active again."""


@dataclass(frozen=True, slots=True)
class Active:
    """The input counts again, once it has caught up with the clock."""


Signal = Watermark | Idle | Active

# --- steps of a task, in the order given ---


@dataclass(frozen=True, slots=True)
class AdvanceClock:
    """Set the task's event time to this."""

    watermark_ms: int


@dataclass(frozen=True, slots=True)
class FireTimers:
    """Fire the event-time timers up to and including this time, by time, then by key.

    A timer that a callback sets at or before this time fires in the same step, one that it cancels does not.
    """

    until_ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """Write the signal to every downstream partition, after all output of timers and records."""

    signal: Signal


Step = AdvanceClock | FireTimers | Send


@dataclass(frozen=True, slots=True)
class Advanced:
    """The clock advanced. `steps`: first the clock, then the due timers, then the watermark downstream."""

    watermark_ms: int

    @property
    def steps(self) -> tuple[Step, ...]:
        now = self.watermark_ms
        return (AdvanceClock(now), FireTimers(now), Send(Watermark(now)))


@dataclass(frozen=True, slots=True)
class WentIdle:
    """The last active input went idle; `advanced` if that moved the clock. Downstream receives Idle last."""

    advanced: Advanced | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*(self.advanced.steps if self.advanced is not None else ()), Send(Idle()))


@dataclass(frozen=True, slots=True)
class WentActive:
    """The first input of an idle task is active again; downstream receives Active before anything else."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return (Send(Active()),)


Outcome = Advanced | WentIdle | WentActive


# --- at the source ---


class WatermarkAssigner(Protocol):
    """Generates the watermarks of one source partition; an application may implement its own with these two methods.

    Every partition needs its own. Each method returns a whole number of milliseconds, or None for nothing new; a number
    lower than an earlier one is ignored.
    """

    def on_record(self, value: Any, timestamp_ms: int) -> int | None:
        """See a record; return a watermark if this record carries one."""
        ...

    def on_periodic(self) -> int | None:
        """Return the current watermark; called at an interval."""
        ...


@checked(InvalidRequest)
class BoundedDisorder:
    """Periodic: records are at most `max_disorder_ms` behind the largest timestamp seen; 0 if they come in order.

    The watermark is one below that bound, because a record exactly on it may still come.
    """

    def __init__(self, max_disorder_ms: int) -> None:
        _check_whole(max_disorder_ms, "max_disorder_ms", least=0)
        self.max_disorder_ms = max_disorder_ms
        self._largest_ms: int | None = None

    def on_record(self, value: Any, timestamp_ms: int) -> int | None:
        """Note the timestamp; `on_periodic` returns the watermark."""
        if self._largest_ms is None or timestamp_ms > self._largest_ms:
            self._largest_ms = timestamp_ms
        return None

    def on_periodic(self) -> int | None:
        """Largest timestamp - disorder - 1; None before the first record."""
        return None if self._largest_ms is None else self._largest_ms - self.max_disorder_ms - 1


@checked(InvalidRequest, exact=())
class Punctuated:
    """Some records carry the watermark: `watermark_of(value, timestamp_ms)` returns it, or None for other records."""

    def __init__(self, watermark_of: Callable[[Any, int], int | None]) -> None:
        self._watermark_of = watermark_of

    def on_record(self, value: Any, timestamp_ms: int) -> int | None:
        """The result of the function for this record."""
        return self._watermark_of(value, timestamp_ms)

    def on_periodic(self) -> int | None:
        """None: only records bring watermarks."""
        return None


class SourceWatermarks:
    """The signals of one source partition: its assigner's watermarks made monotone, and its idleness.

    With `idle_after_ms` the partition is idle at the first periodic call that comes *more* than that long after its
    last record (or after `now_ms` of the beginning); without, only if it is declared idle. A record ends idleness.
    """

    def __init__(self, assigner: WatermarkAssigner, *, now_ms: int = 0, idle_after_ms: int | None = None) -> None:
        if idle_after_ms is not None:
            _check_whole(idle_after_ms, "idle_after_ms", least=1)
        self._assigner = assigner
        self._on_record = unchecked(assigner.on_record)
        self._idle_after_ms = idle_after_ms
        self._heard_ms = now_ms
        self._idle = False
        self._watermark_ms: int | None = None
        self._again = False  # a restored watermark is sent once more: downstream may not have had it

    @property
    def watermark_ms(self) -> int | None:
        """The last watermark; None before the first."""
        return self._watermark_ms

    @property
    def is_idle(self) -> bool:
        """Whether the partition is idle now."""
        return self._idle

    def on_record(self, value: Any, timestamp_ms: int, now_ms: int) -> tuple[Signal, ...]:
        """See a record. Forward it first, then the signals: a record is never late by its own watermark.

        Raises InvalidRequest if the assigner returns anything but whole milliseconds or None.
        """
        mark = self._raised(self._on_record(value, timestamp_ms))
        back = (Active(),) if self._idle else ()
        self._heard_ms = now_ms
        self._idle = False
        return (*back, *mark)

    def on_periodic(self, now_ms: int, *, blocked: bool = False) -> tuple[Signal, ...]:
        """Poll the assigner, and check whether the partition has become idle.

        `blocked`: the partition is paused or has records buffered here, so that its silence is not the source's; the
        time until it is idle starts over. A last watermark of the assigner goes before Idle.
        """
        if blocked:
            self._heard_ms = now_ms
        if self._idle:
            return ()
        mark = self._raised(self._assigner.on_periodic())
        if self._again and not mark and self._watermark_ms is not None:
            mark = (Watermark(self._watermark_ms),)
        self._again = False
        if self._idle_after_ms is not None and now_ms - self._heard_ms > self._idle_after_ms:
            return (*mark, *self.declare_idle())
        return mark

    def declare_idle(self) -> tuple[Signal, ...]:
        """Mark the partition idle on the source's own word; the next record ends it."""
        if self._idle:
            return ()
        self._idle = True
        return (Idle(),)

    def to_state(self) -> int | None:
        """The state to keep: the last watermark. Call `on_periodic` before, so that no watermark is still unsent."""
        return self._watermark_ms

    def restore(self, state: int | None) -> None:
        """Continue from a state: no lower watermark is sent, and this one is sent once more."""
        if state is not None and (self._watermark_ms is None or state > self._watermark_ms):
            _check_whole(state, "a watermark kept")
            self._watermark_ms = state
            self._again = True

    def _raised(self, given: int | None) -> tuple[Signal, ...]:
        if given is None:
            return ()
        _check_whole(given, f"a watermark of {type(self._assigner).__name__}")
        if self._watermark_ms is not None and given <= self._watermark_ms:
            return ()
        self._watermark_ms = given
        self._again = False
        return (Watermark(given),)


# --- at the task ---


@dataclass(slots=True)
class _Input:
    watermark_ms: int | None = None
    idle: bool = False
    counts: bool = True  # never while idle


class InputStatistics(NamedTuple):
    """The status of one input: state is `active`, `idle` or `behind`."""

    channel: Channel
    watermark_ms: int | None
    state: str


@dataclass(frozen=True, slots=True)
class ValveStatistics:
    """The task's clock, the input that holds it back, and every input in the order given."""

    clock_ms: int | None
    is_idle: bool
    holding_back: Channel | None
    inputs: tuple[InputStatistics, ...]


class WatermarkValve:
    """The event-time clock of one task, over all partitions of all its inputs: two inputs share this one clock."""

    def __init__(self, channels: Iterable[Channel] = ()) -> None:
        self._inputs: dict[Channel, _Input] = {channel: _Input() for channel in channels}
        self._clock_ms: int | None = None

    @property
    def clock_ms(self) -> int | None:
        """The task's current watermark; None while it is unknown."""
        return self._clock_ms

    @property
    def is_idle(self) -> bool:
        """Whether every input is idle."""
        return bool(self._inputs) and all(entry.idle for entry in self._inputs.values())

    def is_late(self, timestamp_ms: int) -> bool:
        """Whether a record is at or before the current watermark: it goes to the side output."""
        return self._clock_ms is not None and timestamp_ms <= self._clock_ms

    def add(self, channel: Channel) -> WentActive | None:
        """Add an input: the clock waits for its first watermark, and until it has caught up. A known one stays."""
        if channel in self._inputs:
            return None
        was_idle = self.is_idle
        self._inputs[channel] = _Input()
        return WentActive() if was_idle else None

    def on_signal(self, channel: Channel, signal: Signal) -> Outcome | None:
        """Apply a signal of an input; None if nothing changes. Raises InvalidRequest for an unknown channel."""
        if isinstance(signal, Watermark):
            return self.on_watermark(channel, signal.watermark_ms)
        return self.on_idle(channel) if isinstance(signal, Idle) else self.on_active(channel)

    def on_watermark(self, channel: Channel, watermark_ms: int) -> Advanced | None:
        """Apply the watermark of an input; ignored unless higher than its last, and while the input is idle."""
        _check_whole(watermark_ms, f"a watermark of {channel}")
        entry = self._input(channel)
        if entry.idle or (entry.watermark_ms is not None and watermark_ms <= entry.watermark_ms):
            return None
        entry.watermark_ms = watermark_ms
        entry.counts = entry.counts or self._caught_up(entry)
        return self._advance(self._smallest())

    def on_idle(self, channel: Channel) -> Advanced | WentIdle | None:
        """Mark an input idle: it no longer counts, which lets the clock go on if this input held it."""
        entry = self._input(channel)
        if entry.idle:
            return None
        held = entry.counts and (entry.watermark_ms is None or entry.watermark_ms == self._clock_ms)
        entry.idle = True
        entry.counts = False
        if not self.is_idle:
            return self._advance(self._smallest()) if held else None
        # With every input idle, only this brings the clock to the largest watermark: no input will do so later.
        known = (other.watermark_ms for other in self._inputs.values() if other.watermark_ms is not None)
        return WentIdle(self._advance(max(known, default=None)) if held else None)

    def on_active(self, channel: Channel) -> WentActive | None:
        """Mark an input active again. If it is behind the clock it does not count until it has caught up."""
        entry = self._input(channel)
        if not entry.idle:
            return None
        was_idle = self.is_idle
        entry.idle = False
        entry.counts = self._caught_up(entry)
        return WentActive() if was_idle else None

    def holding_back(self) -> Channel | None:
        """The input that the clock waits for: the first without a watermark, else the one with the smallest.

        If all active inputs are behind the clock, the one nearest to it; None while every input is idle.
        """
        inputs = self._inputs.copy()  # another thread's status may ask while `add` adds one
        known = {channel: entry for channel, entry in inputs.items() if not entry.idle}
        counting = [channel for channel, entry in known.items() if entry.counts]
        if counting:
            return min(counting, key=lambda channel: _none_first(known[channel].watermark_ms))
        return max(known, key=lambda channel: _none_first(known[channel].watermark_ms), default=None)

    def announce(self) -> tuple[Step, ...]:
        """The steps of a starting task: downstream may still believe it idle, and ignores other signals until then."""
        again = () if self._clock_ms is None else (Send(Watermark(self._clock_ms)),)
        return (Send(Active()), *again)

    def to_state(self) -> dict[str, int]:
        """The state to keep: channel -> watermark, and under CLOCK_KEY the clock; unknown watermarks are absent.

        The clock alone is enough where space is scarce: it then waits until every input has sent a watermark again.
        """
        state = {
            str(channel): entry.watermark_ms
            for channel, entry in self._inputs.items()
            if entry.watermark_ms is not None
        }
        return state if self._clock_ms is None else {**state, CLOCK_KEY: self._clock_ms}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a state, or from several: the higher time wins. Channels that are no inputs are ignored.

        Every input is active afterwards; one that is behind the clock counts once it has caught up. This moves no
        timers: those at or before the clock had fired when the state was kept.
        """
        for key, watermark_ms in state.items():
            _check_whole(watermark_ms, f"the watermark kept of {key}")
        kept = state.get(CLOCK_KEY)
        if kept is not None and (self._clock_ms is None or kept > self._clock_ms):
            self._clock_ms = kept
        for channel, entry in self._inputs.items():
            kept = state.get(str(channel))
            if kept is not None and (entry.watermark_ms is None or kept > entry.watermark_ms):
                entry.watermark_ms = kept
            entry.idle = False
            entry.counts = entry.watermark_ms is None or self._caught_up(entry)

    def statistics(self) -> ValveStatistics:
        """The current status of the clock and its inputs."""
        inputs = (
            InputStatistics(
                channel, entry.watermark_ms, "idle" if entry.idle else "active" if entry.counts else "behind"
            )
            for channel, entry in self._inputs.items()
        )
        return ValveStatistics(self._clock_ms, self.is_idle, self.holding_back(), tuple(inputs))

    def _caught_up(self, entry: _Input) -> bool:
        return self._clock_ms is None or (entry.watermark_ms is not None and entry.watermark_ms >= self._clock_ms)

    def _smallest(self) -> int | None:
        smallest: int | None = None
        for entry in self._inputs.values():
            if not entry.counts:
                continue
            if entry.watermark_ms is None:
                return None
            if smallest is None or entry.watermark_ms < smallest:
                smallest = entry.watermark_ms
        return smallest

    def _advance(self, to_ms: int | None) -> Advanced | None:
        if to_ms is None or (self._clock_ms is not None and to_ms <= self._clock_ms):
            return None
        self._clock_ms = to_ms
        return Advanced(to_ms)

    def _input(self, channel: Channel) -> _Input:
        try:
            return self._inputs[channel]
        except KeyError:
            known = few(self._inputs)
            raise InvalidRequest(
                f"watermarks: {channel} is not an input of this task ({known}): add it first"
            ) from None


def _none_first(watermark_ms: int | None) -> tuple[bool, int]:
    return (False, 0) if watermark_ms is None else (True, watermark_ms)


def _check_whole(value: int, what: str, least: int | None = None) -> None:
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" from {least}"
        raise InvalidRequest(f"{what} is {value!r}: give a whole number of milliseconds{bound}")
