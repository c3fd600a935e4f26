"""Players of the scripts in tests/scenarios: those of `proof/worked_examples`, with one-line answers.

    credits       statistics; `a1` is sent on an own credit, `a1~` on a floating one, `(3)` is its backlog
    handover      statistics; `-` for nothing
    standby       statistics
    punctuation   as there
    watermarks    source flights/0 disorder=5 idle=100      an assigner for that partition, from time 0 on
                  at 0 flights/0 10 7                       records at that wall-clock time: late or not, their signals
                  tick 200                                  the assigners are polled, and idleness is checked
                  status | restart 0_0                      every clock and input | the task goes on from its kept state
                  signals of a task arrive at once at the tasks that read it, `counts/0@0_0`; the first task
                  of a block begins from nothing
    windows       record 9 10        records: `put` row and the times it holds, `remove` row, `drop` (the window is
                                     closed), `close` row that this record's time closed
                  rows               every row there is, closed ones with a *
    aggregation   new tumbling size=10 grace=5 emit=update cache=off      an application: kinds of windows, or none;
                                                                          values=list keeps the values
                  a@1 a@2=x -@3      records: key, time, value (absent: none); key - is no key, value null is None
                  commit | restart   suppressed results go out | commit, and new processors on the same state
                  results as key start..end value (value before) at timestamp, then drops

Rules of this file: players and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partialmethod
from typing import Any

from standfast.replication.credits import Decision
from standfast.replication.standby import LimitSet, Reinitialise, StandbyStep
from standfast.store.errors import StandfastError
from standfast.stream.app.testing import Driver
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE
from standfast.stream.watermarks import (
    AdvanceClock,
    BoundedDisorder,
    Channel,
    FireTimers,
    Signal,
    SourceWatermarks,
    Watermark,
    WatermarkValve,
)
from standfast.stream.watermarks import Step as WatermarkStep
from standfast.stream.windows import TIME_MAX, SessionWindows, SlidingWindows, Window
from support.aggregates import Result, counted, driven, drops, listed, results
from worked_examples.credits import Pipeline
from worked_examples.handover import Exchange
from worked_examples.punctuator import Fired, Queue
from worked_examples.script import Player
from worked_examples.standby import Follower
from worked_examples.watermarks import Tasks
from worked_examples.windows import Bounds, windows_of


class Lines(Player):
    """Answers for people: text unchanged, errors with their messages."""

    def lines(self, answer: Any) -> list[str]:
        if isinstance(answer, StandfastError):
            return [f"{type(answer).__name__}: {answer}"]
        return [answer] if isinstance(answer, str) else [self.line(one) for one in answer]

    def line(self, answer: Any) -> str:
        return str(answer)


class CreditsPlayer(Lines, Pipeline):
    def statistics(self) -> list[str]:
        now = self.credits.statistics()
        lines = [
            f"{name.topic} credits={one.credits} backlog={one.backlog}/{one.backlog_bytes} in_hand={one.in_hand} "
            f"floating={one.floating_in_hand} {'paused' if one.paused else 'fetching'}"
            for name, one in now.partitions.items()
        ]
        total = f"free={now.floating_free} queued={now.queue_bytes} in_hand={now.hand_bytes} sent={now.sent_batches}"
        return [*lines, f"{total} pauses={now.pauses}"]

    def lines(self, answer: Any) -> list[str]:
        if not isinstance(answer, Decision):
            return super().lines(answer)
        words = [f"{sent.batch}{'~' if sent.floating else ''}({sent.backlog})" for sent in answer.send]
        words += [f"pause={name.topic}" for name in answer.pause]
        words += [f"resume={name.topic}" for name in answer.resume]
        words += [f"dropped={name}" for name in answer.dropped]
        return [" ".join(words) or "-"]


class HandoverPlayer(Lines, Exchange):
    def statistics(self) -> str:
        now = self.cast.handover.statistics()
        full = "full" if now.full else "empty"
        return f"{full} produced={now.produced} polled={now.polled} wake_ups={now.wake_ups}"

    def lines(self, answer: Any) -> list[str]:
        return super().lines(answer if isinstance(answer, str) else ", ".join(answer) or "-")


class StandbyPlayer(Lines, Follower):
    def statistics(self) -> str:
        now = self.standby.statistics()
        return (
            f"{now.state.value} applied={now.applied_records} duplicates={now.duplicate_records} "
            f"dropped={now.dropped_records} waits={now.limit_waits} regressions={now.limit_regressions}"
        )

    def lines(self, answer: Any) -> list[str]:
        match answer:
            case LimitSet():
                return [f"limit={answer.limit}" + (" regressed" if answer.regressed else "")]
            case Reinitialise():
                return [f"reinitialise {answer.reason} position={answer.position} dropped={answer.dropped}"]
            case StandbyStep():
                words = [type(answer).__name__.lower(), *(str(record.offset) for record in answer.apply)]
                words += [f"position={answer.position}", f"kept={answer.kept}"]
                words += ["pause"] if answer.pause else []
                words += [f"seek={answer.seek}"] if answer.seek is not None else []
                return [" ".join([*words, *(["resume"] if answer.resume else [])])]
        return super().lines(answer)


class PunctuationPlayer(Lines, Queue):
    def line(self, answer: Fired) -> str:
        fired = [f"{name}({now_ms})" for name, now_ms in answer.fired]
        end = "failed" if answer.counted is None else f"fired={answer.counted}"
        due = "none" if answer.next_ms is None else answer.next_ms
        return " ".join([f"{answer.at}:", *fired, end, f"next={due}"])


class WatermarksPlayer(Lines, Tasks):
    def begin(self) -> None:
        super().begin()
        self.sources: dict[Channel, SourceWatermarks] = {}
        self.declaring = False

    def act(self, command: str) -> Any:
        declares, declared = command.startswith("task "), self.declaring
        if declares and not declared:
            self.begin()
        self.declaring = declares
        return super().act(command)

    def task(self, name: str, *channels: str) -> str:
        super().task(name, *channels)
        return f"{name}: reads {', '.join(map(str, self.inputs[name]))}"

    def source(self, text: str, *, disorder: int, idle: int | None = None) -> str:
        self.sources[Channel.parse(text)] = SourceWatermarks(BoundedDisorder(disorder), idle_after_ms=idle)
        return f"{text}: source"

    def restart(self, name: str) -> list[str]:
        state = self.tasks[name].to_state()
        self.tasks[name] = WatermarkValve(self.inputs[name])
        self.tasks[name].restore(state)
        kept = " ".join(f"{key}={mark}" for key, mark in state.items())
        return [f"{name}: kept {kept or 'nothing'}", *self.carry_out(name, self.tasks[name].announce())]

    def say(self, channel: str, *signals: str) -> list[str]:
        return super().say(channel, *signals) or ["nothing new"]

    def signals(self, channel: Channel, signals: Sequence[Signal]) -> list[str]:
        said = []
        for signal in signals:
            for name, channels in self.inputs.items():
                outcome = self.tasks[name].on_signal(channel, signal) if channel in channels else None
                if outcome is not None:
                    said += self.carry_out(name, outcome.steps)
        return said

    def carry_out(self, name: str, steps: Sequence[WatermarkStep]) -> list[str]:
        said = [f"{name}: {', '.join(map(_in_words, steps))}"]
        for step in steps:
            if not isinstance(step, AdvanceClock | FireTimers):
                for channel in [one for inputs in self.inputs.values() for one in inputs if one.upstream == name]:
                    said += self.signals(channel, [step.signal])
        return said

    def at(self, now_ms: str, text: str, *times: str) -> list[str]:
        said, channel = [], Channel.parse(text)
        for at in map(int, times):
            for name, channels in self.inputs.items():
                if channel in channels:
                    said.append(f"{name}: {channel} {at} is {'late' if self.tasks[name].is_late(at) else 'in time'}")
            if channel in self.sources:
                said += self.signals(channel, self.sources[channel].on_record("v", at, int(now_ms)))
        return said

    def tick(self, now_ms: str) -> list[str]:
        said = []
        for channel, source in self.sources.items():
            said += self.signals(channel, source.on_periodic(int(now_ms)))
        return said or ["nothing new"]

    def status(self) -> list[str]:
        said = []
        for name, valve in self.tasks.items():
            seen = valve.statistics()
            inputs = "; ".join(f"{one.channel} {_shown(one.watermark_ms)} {one.state}" for one in seen.inputs)
            held = "nothing" if seen.holding_back is None else str(seen.holding_back)
            said.append(f"{name}: clock {_shown(seen.clock_ms)}, held back by {held}: {inputs}")
        return said


def _shown(mark: int | None) -> str:
    return "unknown" if mark is None else str(mark)


def _in_words(step: WatermarkStep) -> str:
    if isinstance(step, AdvanceClock):
        return f"clock {step.watermark_ms}"
    if isinstance(step, FireTimers):
        return f"timers to {step.until_ms}"
    signal = step.signal
    return f"send {signal.watermark_ms if isinstance(signal, Watermark) else type(signal).__name__.lower()}"


class WindowsPlayer(Lines, Bounds):
    """The rows of one key under one kind of windows, each with the times that it holds."""

    def begin(self, kind: str, **numbers: int) -> str:
        super().begin(kind, **numbers)
        self.held: dict[Window, list[int]] = {}
        self.observed_ms = -1
        return "empty"

    tumbling = partialmethod(begin, "tumbling")
    hopping = partialmethod(begin, "hopping")
    sliding = partialmethod(begin, "sliding")
    session = partialmethod(begin, "session")
    unlimited = partialmethod(begin, "unlimited")

    def name(self, window: Window) -> str:
        ends_are_inside = isinstance(self.kind, SlidingWindows | SessionWindows)
        return f"[{window.start}, {window.end}{']' if ends_are_inside else ')'}"

    def windows(self, *times: str) -> Any:
        found = super().windows(*times)
        pairs = zip(times, found, strict=True)
        return [f"{time}: {' '.join(map(self.name, windows)) or 'none'}" for time, windows in pairs]

    def record(self, *times: str) -> list[str]:
        return [self._record(int(time)) for time in times]

    def rows(self) -> list[str]:
        shown = []
        for row, times in sorted(self.held.items()):
            mark = "*" if self.kind.is_closed(row, self.observed_ms) else ""
            shown.append(f"{self.name(row)}{mark} {' '.join(map(str, times))}")
        return shown or ["none"]

    def _put(self, window: Window, times: list[int]) -> None:
        self.held[window] = sorted(times)
        self.said.append(f"put {self.name(window)} {' '.join(map(str, self.held[window]))}")

    def _drop(self, window: Window) -> None:
        self.said.append(f"drop {self.name(window)}")

    def _record(self, at: int) -> str:
        self.said: list[str] = []
        open_before = [row for row in self.held if not self.kind.is_closed(row, self.observed_ms)]
        self.observed_ms = max(self.observed_ms, at)
        if isinstance(self.kind, SlidingWindows):
            self._slide(self.kind, at)
        elif isinstance(self.kind, SessionWindows):
            self._join(self.kind, at)
        else:
            for window in self.kind.windows_for(at):
                if self.kind.is_closed(window, self.observed_ms):
                    self._drop(window)
                else:
                    self._put(window, [*self.held.get(window, []), at])
        closed = sorted(row for row in open_before if self.kind.is_closed(row, self.observed_ms))
        return f"{at}: {', '.join([*self.said, *(f'close {self.name(row)}' for row in closed)]) or 'in no window'}"

    def _slide(self, windows: SlidingWindows, at: int) -> None:
        first, last = windows.search_starts(at)
        seen = {row.start: times for row, times in self.held.items() if first <= row.start <= last}
        plan = windows.plan(at, [(start, max(times)) for start, times in seen.items()], self.observed_ms)
        for change in plan.changes:
            base = [] if change.source is None else seen[change.source]
            self._put(change.window, [*base, at] if change.adds else base)
        for window in plan.dropped:
            self._drop(window)

    def _join(self, windows: SessionWindows, at: int) -> None:
        merge = windows.merge(self.held, at)
        if windows.is_closed(merge.session, self.observed_ms):
            self._drop(merge.session)
            return
        times = [at, *(time for session in merge.absorbed for time in self.held[session])]
        for session in merge.removed:
            del self.held[session]
            self.said.append(f"remove {self.name(session)}")
        self._put(merge.session, times)


class AggregationPlayer(Lines):
    """One application of support.aggregates after another."""

    def __init__(self) -> None:
        self.open: Any = None
        self.driver: Driver | None = None

    def act(self, command: str) -> Any:
        try:
            return self.act_or_raise(*command.split())
        except StandfastError as error:
            return error

    def act_or_raise(self, name: str, *words: str) -> Any:
        if name == "new":
            return self.new(*words)
        assert self.driver is not None
        if name in ("commit", "restart"):
            getattr(self.driver, name)()
            return self.answer(name)
        answers = []
        for word in (name, *words):
            self.pipe(word)
            answers += self.answer(word)
        return answers

    def new(self, kind: str, *words: str) -> str:
        options = dict(word.split("=") for word in words)
        emit = {"update": ON_WINDOW_UPDATE, "close": ON_WINDOW_CLOSE}[options.pop("emit", "update")]
        cache = options.pop("cache", "off") == "on"
        build = {"list": listed, "count": counted}[options.pop("values", "count")]
        retention = {"retention_ms": int(options.pop("retention"))} if "retention" in options else {}
        self.end()
        windows = None if kind == "none" else windows_of(kind, {name: int(value) for name, value in options.items()})
        self.open = driven(windows, build, emit=emit, caching=cache, on_error="skip", **retention)
        self.driver = self.open.__enter__()
        self.dropped: dict[str, int] = {}
        return "ready"

    def end(self) -> None:
        if self.driver is not None:
            self.open.__exit__(None, None, None)
            self.driver = None

    def pipe(self, word: str) -> None:
        assert self.driver is not None
        place, _, value = word.partition("=")
        key, _, stamp = place.partition("@")
        given = None if value == "null" else value or "x"
        self.driver.pipe("in", None if key == "-" else key, given, int(stamp))

    def answer(self, word: str) -> list[str]:
        """Results and skipped records since the last answer."""
        assert self.driver is not None
        now = drops(self.driver)
        changed = [name for name in now if now[name] != self.dropped.get(name)]
        left_out = [f"  dropped {name}={now[name] - self.dropped.get(name, 0)}" for name in changed]
        self.dropped = now
        lines = [f"  {_result(one)}" for one in results(self.driver)] + left_out
        return [f"{word}:", *lines] if lines else [f"{word}: nothing"]


def _result(result: Result) -> str:
    end = "" if result.end == TIME_MAX else result.end
    where = "" if result.start is None else f" {result.start}..{end}"
    value, old = (json.dumps(one) for one in (result.value, result.old))
    return f"{result.key}{where} {value} (was {old}) at {result.timestamp}"


PLAYERS: dict[str, type[Player]] = {
    "aggregation": AggregationPlayer,
    "credits": CreditsPlayer,
    "handover": HandoverPlayer,
    "punctuation": PunctuationPlayer,
    "standby": StandbyPlayer,
    "watermarks": WatermarksPlayer,
    "windows": WindowsPlayer,
}
