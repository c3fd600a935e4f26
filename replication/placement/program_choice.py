"""Which of several programs runs, where instances of one application do not declare the same groups and stores.

    an instance whose program is not that of the generation in force
        waits            while instances of that program live; it names them, and the difference
        takes over       once they are gone, or with `replace`, once, at its start

    replace   claim of the lead ──> a generation without tasks ──> all others commit, close and report ──> fenced
                                                               ──> the first generation of the new program

No task of the new program is open beside one of the old: the same records may belong to a task of another name. The
replaced instances wait; they go on only once those of the new program have been gone for `grace_ms`, so that a restart
of the new one gives nothing back.

Rules of this file: it reads the placement's state and decides; `managed.py` carries it out. It keeps no clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.placement.records import Generation, PlacementState, Report
from standfast.replication.programs import Shapes, difference
from standfast.replication.takeover import MemberTraits
from standfast.store.log import as_event, logger
from standfast.store.names import few

Members = Mapping[str, MemberTraits | None]  # None: an instance of a version without managed placement


class Programs:
    """One instance's program, beside the one in force."""

    def __init__(self, app: str, member: str, program: str, shapes: Shapes, *, replace: bool, grace_ms: int) -> None:
        self.program = program
        self.shapes = shapes
        self.waits = ""  # why this instance holds no tasks; empty: it may
        self._app = app
        self._member = member
        self._replace = replace
        self._grace_ms = grace_ms
        self._gone_since_ms: int | None = None
        self._warned: object = None
        self._drained_for: tuple[str, ...] = ()

    def runs(self, valid: Generation | None) -> bool:
        """Whether a generation is of this program."""
        return valid is not None and valid.program in ("", self.program)

    def replaces(self, valid: Generation | None) -> bool:
        """Whether this instance is to take the lead from a live leader of another program."""
        return self._replace and valid is not None and not self.runs(valid)

    def replaced(self) -> None:
        """The lead was claimed: two instances that both replace must not take it from each other for ever."""
        self._replace = False

    def look(self, valid: Generation | None, members: Members, now_ms: int, *, claimed: bool) -> str:
        """Why this instance must wait; empty if it may hold tasks. `claimed`: its claim of the lead is the newest."""
        older = tuple(sorted(name for name, traits in members.items() if traits is None))
        if older:
            # They read no generation, so they cannot be made to give up their tasks.
            words = f"{few(older)} run a version without managed placement and share the tasks out by themselves"
            return self._wait(older, f"{words}: this instance waits until they have stopped")
        if valid is None or self.runs(valid):
            self._replace = self._replace and valid is None  # nothing is left to replace
            return self._go_on()
        if claimed or self._replace:
            return self._go_on()
        others = _of(valid.program, members)
        if not others and not self._expects_back(valid, now_ms):
            return self._go_on()
        if others:
            self._gone_since_ms = None
        return self._wait(others, self._words(valid, others))

    def is_drained(self, valid: Generation, state: PlacementState, members: Members) -> bool:
        """Whether all live instances of other programs have given their tasks up, after a generation without tasks."""
        busy = tuple(
            name for name in self.others(members) if not _has_given_up(state.report(name), valid.assignment.generation)
        )
        if busy and busy != self._drained_for:
            logger.info(
                "application %s: its tasks begin here once %s have committed and closed theirs",
                self._app,
                ", ".join(busy),
                extra=as_event("replace_waits", app=self._app, others=list(busy)),
            )
        self._drained_for = busy
        return not busy

    def others(self, members: Members) -> list[str]:
        """Live instances of other programs."""
        return sorted(name for name, one in members.items() if one is not None and one.program != self.program)

    def difference(self, valid: Generation) -> str:
        """How the program in force and this one differ."""
        return difference(valid.shapes, self.shapes)

    def _expects_back(self, valid: Generation, now_ms: int) -> bool:
        if valid.replaced != self.program:
            return False
        if self._gone_since_ms is None:
            self._gone_since_ms = now_ms
        return now_ms - self._gone_since_ms < self._grace_ms

    def _words(self, valid: Generation, others: tuple[str, ...]) -> str:
        if valid.replaced == self.program:
            back = f"by instances that are expected back (restart_grace_ms={self._grace_ms})"
            live = f"by {few(others)}" if others else back
            return (
                f"the program of this instance ({self._member}) was replaced {live}, of another program "
                f"({self.difference(valid)}): it holds no task and waits until they have stopped; start it with "
                "--replace, App(replace=True), to take the application back"
            )
        return (
            f"{few(others)} run another program ({self.difference(valid)}): this instance ({self._member}) waits "
            "until they have stopped; start it with --replace, App(replace=True), to take the application over"
        )

    def _wait(self, others: tuple[str, ...], words: str) -> str:
        if self._warned != others:
            logger.warning(
                "application %s: %s", self._app, words,
                extra=as_event("instance_waits", app=self._app, others=list(others)),
            )  # fmt: skip
        self._warned, self.waits = others, words
        return words

    def _go_on(self) -> str:
        self._warned, self._gone_since_ms, self.waits = None, None, ""
        return ""


def _of(program: str, members: Members) -> tuple[str, ...]:
    return tuple(sorted(name for name, one in members.items() if one is not None and one.program == program))


def _has_given_up(report: Report | None, generation: int) -> bool:
    """A report of an earlier life may say that tasks run; only a report after the generation counts."""
    if report is None:
        return False
    return report.stopped or (report.generation >= generation and not report.running | report.restoring)
