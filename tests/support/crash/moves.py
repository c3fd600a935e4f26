"""Two sidecars of one application whose partitions move between active, standby and gone while processes are killed.

    Moves.step      a plan is drawn ──> both sidecars are assigned their parts, in any order, during a kill
                    ──> dead processes are restarted ──> every active partition is open again in time, and commits
    Moves.end       all partitions on one sidecar: every row and offset; then a restore of the log alone

Rules of this file: one thread decides, from the run's seed; after each step it checks the problems that the threads of
`support.crash.moves_load` reported. `summary` reports the measurements.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from support.crash.moves_load import HttpScanner, Known, Owner, Refusal, RespScanner, Wire, Writer, batch, offset_in
from support.crash.moves_look import look, restored
from support.crash.moves_model import STORES
from support.crash.moves_node import PARTITIONS, STUCK_S, CrashedNode, Plan, Watch
from support.crash.time_had import Beats
from support.serve import Sidecars

PREFILL = 1_200
SHORT_LEASE_MS = 500
STRIKE_S = 0.4  # at most, from the begin of a step to a kill


@dataclass
class Figures:
    """The measurements of a run."""

    opened: list[tuple[float, float]] = field(default_factory=list)  # by the clock, and of the process's own time
    started: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)


class Moves:
    """One run."""

    def __init__(self, sidecars: Sidecars, seed: str, *, exactly_once: bool, workers: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.root = sidecars.root
        self.log = sidecars.log
        self.guarantee = "exactly_once" if exactly_once else "at_least_once"
        self.known = Known(PARTITIONS, exactly_once=exactly_once)
        self.nodes = [
            CrashedNode(sidecars.make(name, app__guarantee=self.guarantee, serve__workers=workers), name, self.known)
            for name in ("a", "b")
        ]
        self.figures = Figures()
        self.beats = Beats(self.root / "beats")
        self._watches: dict[str, Watch] = {}
        self._serial = 0
        self._threads: list[threading.Thread] = []
        self._renewed = threading.Thread(target=self._renew, name="leases", daemon=True)

    # -- the run ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start both sidecars, with the partitions filled, and the load that runs all the time."""
        self.beats.start()
        self._renewed.start()
        for node in self.nodes:
            self._start(node)
        plan = Plan({one: self.nodes[one % 2].name for one in range(PARTITIONS)}, dict.fromkeys(range(PARTITIONS)))
        for node in self.nodes:
            self._assigned(node, plan)
        self._wait_open()
        for partition, name in plan.owner.items():
            self._prefill(self._node(str(name)), partition)
        self._settled(plan)
        known, seed = self.known, self.seed
        self._threads += [Writer(known, seed, node, one) for node in self.nodes for one in range(PARTITIONS)]
        self._threads += [RespScanner(known, f"{seed}-{number}", list(self.nodes)) for number in range(2)]
        self._threads += [HttpScanner(known, f"{seed}-{number}", list(self.nodes)) for number in range(2)]
        for thread in self._threads:
            thread.start()

    def step(self) -> None:
        """One move, with a kill during it."""
        rng = self.rng
        before = self.nodes[0].plan
        assert before is not None
        plan = self._draw(before)
        self.known.owner = dict.fromkeys(range(PARTITIONS))  # moving, or perhaps killed: no certain owner
        strikes = [self._strike() for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        for strike in strikes:
            strike.start()
        for node in rng.sample(self.nodes, 2):
            self._assigned(node, plan)
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.2))
        for strike in strikes:
            strike.join()
        for node in self.nodes:
            if not node.up:
                self._start(node)
                self._assigned(node, plan)
        self._wait_open()
        self._settled(plan)
        self._wait_commits(plan)
        self.check()

    def check(self) -> None:
        """Raise AssertionError for any thread's problem."""
        assert not self.known.problems, f"{self.seed}: " + "\n".join(self.known.problems[:5])

    def close(self) -> None:
        """End the threads."""
        self.known.over.set()
        for thread in self._threads:
            thread.join()
        if self._renewed.ident is not None:
            self._renewed.join()
            self.beats.stop()

    def summary(self) -> str:
        """One line of figures."""
        figures, known = self.figures, self.known
        raw = max((one for one, _ in figures.opened), default=0.0)
        net = max((one for _, one in figures.opened), default=0.0)
        done, refused = (
            ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
            for counts in (figures.done, known.answers)
        )
        return (
            f"{sum(known.acks.values())} commits, {sum(known.acknowledged.values())} operations, {known.looks} looks, "
            f"{sum(known.scans.values())} scans; {done}; opened {len(figures.opened)} times, "
            f"{raw:.1f} s at most, {net:.1f} s of it the sidecar's; started in {max(figures.started):.1f} s at most; "
            f"refused: {refused}"
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        return [node.name for node in self.nodes]

    def _node(self, name: str) -> CrashedNode:
        return next(node for node in self.nodes if node.name == name)

    def _draw(self, before: Plan) -> Plan:
        """Draw each sidecar's roles: any partition moves, stays, or has no owner."""
        rng = self.rng
        owner = {
            one: rng.choice((before.owner[one], "a", "b", "a", "b", None) if rng.random() < 0.7 else (now,))
            for one, now in before.owner.items()
        }
        standby = {
            one: other if rng.random() < 0.6 else None
            for one in owner
            for other in [rng.choice([name for name in self._names if name != owner[one]])]
        }
        return Plan(owner, standby)

    def _assigned(self, node: CrashedNode, plan: Plan) -> None:
        """Assign a sidecar its part, unless it dies; now and then after a revoke, or with a lease that ends at once."""
        draw = self.rng.random()
        try:
            if draw < 0.15:
                self._revoke(node)
            elif draw < 0.25:
                self._lapse(node, plan)
            watch = self._watches[node.name] = Watch(node, self.beats)
            node.assign(plan)
            watch.start()
            self.figures.done["moves"] += 1
        except ConnectionError:
            self.check()
            assert not node.up, f"{self.seed}: {node.name} lives, and cannot be assigned"
        finally:
            node.beating = True

    def _revoke(self, node: CrashedNode) -> None:
        partitions = sorted(self.rng.sample(range(PARTITIONS), 2))
        body = {"generation": node.generation, "partitions": partitions, "mode": self.rng.choice(("clean", "lost"))}
        with contextlib.suppress(Refusal):  # a generation whose lease ended, or that a kill made forgotten
            node.ask("POST", "/v1/revoke", body)
            self.figures.done["revokes"] += 1

    def _lapse(self, node: CrashedNode, plan: Plan) -> None:
        node.beating = False
        node.assign(plan, SHORT_LEASE_MS)
        end_s = time.monotonic() + STUCK_S
        while any(plan.of(node.name)) and not node.ask("GET", "/v1/ready")["idle"]:
            assert time.monotonic() < end_s, f"{self.seed}: the lease of {node.name} does not end"
            time.sleep(0.02)
        self.figures.done["lapses"] += 1

    def _strike(self) -> threading.Timer:
        """A timer that kills a server or a worker soon."""
        node, what = self.rng.choice(self.nodes), self.rng.choice(("server", "worker", "worker"))

        def strike() -> None:
            if what == "server":
                self.figures.done["servers killed"] += node.kill()
                return
            with contextlib.suppress(ConnectionError, Refusal):
                for pid in node.workers():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    self.figures.done["workers killed"] += 1
                self._watches[node.name].disturbed()

        return threading.Timer(self.rng.uniform(0, STRIKE_S), strike)

    def _start(self, node: CrashedNode) -> None:
        began_s = time.monotonic()
        node.start()
        self.figures.started.append(time.monotonic() - began_s)

    def _settled(self, plan: Plan) -> None:
        """Every owner is open, and no other sidecar is assigned its partitions."""
        self._serial += 1
        for one, name in plan.owner.items():
            self.known.owner[one] = None if name is None else Owner(name, self._serial)

    # -- looks --------------------------------------------------------------------------------------------------------

    def _wait_open(self) -> None:
        """Wait until every active partition is open, at most OPEN_S after its sidecar was last disturbed."""
        for node in self.nodes:
            if not node.up:
                continue
            watch = self._watches[node.name]
            watch.join()
            self.check()
            assert watch.ended == "open", f"{self.seed}: {node.name} was killed, and not started"
            self.figures.opened.append(watch.took_s)
            self.figures.done["lapses of a slow machine"] += watch.lapsed
            node.ask("GET", "/livez")

    def _wait_commits(self, plan: Plan) -> None:
        """Wait until every active partition takes commits."""
        known, end_s = self.known, time.monotonic() + STUCK_S
        wanted = {(name, one): known.acks[name, one] for one, name in plan.owner.items() if name is not None}
        while any(known.acks[place] <= count for place, count in wanted.items()):
            self.check()
            late = [place for place, count in wanted.items() if known.acks[place] <= count]
            assert time.monotonic() < end_s, f"{self.seed}: no commits of {late}: {known.answers}"
            time.sleep(0.01)

    def _prefill(self, node: CrashedNode, partition: int) -> None:
        with contextlib.closing(Wire(self.known, "prefill", node, partition)) as wire:
            assert offset_in(wire("SF.OFFSETS"), partition) == 0
            for first in range(0, PREFILL, 400):
                self.known.attempt(partition, first + 400)
                wire.whole(batch(partition, first, first + 400, multi=True))
                self.known.acknowledge(node, partition, first + 400, None)

    def _renew(self) -> None:
        while not self.known.over.wait(0.3):
            for node in self.nodes:
                node.beat()

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Check that every acknowledged commit is in the stores of one sidecar, and in the log alone."""
        self.close_load()
        node, other = self.rng.sample(self.nodes, 2)
        if self.rng.random() < 0.5:
            other.kill()
        else:
            other.stop()
        plan = Plan(dict.fromkeys(range(PARTITIONS), node.name), dict.fromkeys(range(PARTITIONS)))
        self.known.owner = dict.fromkeys(range(PARTITIONS))
        self._assigned(node, plan)
        self._wait_open()
        found = {partition: look(node, partition) for partition in range(PARTITIONS)}
        self.check()
        verdicts = node.ask("POST", "/v1/verify", {})["verdicts"]
        wrong = [one for one in verdicts if one["verdict"] != "equal"]
        assert len(verdicts) == PARTITIONS * len(STORES) and not wrong, f"{self.seed}: {wrong or verdicts}"
        node.stop()
        restored(self.log, self.root / "restored", self.guarantee, found)
        self._look_at_lines()

    def close_load(self) -> None:
        """End writers and scanners, and go on with the leases."""
        self.known.over.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._renewed.join()
        self.check()
        self.known.over.clear()
        self._renewed = threading.Thread(target=self._renew, name="leases", daemon=True)
        self._renewed.start()

    def _look_at_lines(self) -> None:
        """Check that the sidecars' logs have no traceback, and no error from outside the library."""
        for node in self.nodes:
            text = node.sidecar.log_path.read_text(errors="replace")
            bad = [
                line for line in text.splitlines() if any(word in line for word in ("Traceback", "bug in", "http: "))
            ]
            assert not bad, f"{self.seed}: {node.name} wrote {bad[:3]}\n{text[-6_000:]}"
