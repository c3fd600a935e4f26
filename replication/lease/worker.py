"""The lease process: renews one member's lease, with an interpreter and a connection to the log of its own.

    python -m standfast.replication.lease.worker      started by process.py

    stdin    {"log": ADDRESS, "parent": PID, "owner": PIDFD, "max_stall_ms": N, "words": FD}    connect
             {"group": NAME, "member": ID, "lease_ms": N, "process": TOKEN,                     renew from now on
              "word": "going" | "gone" | ""}
             {"done": true}                                                                     end
    stdout   one line of text for each new difficulty
    words    see progress.py

The lease is that of a group as large as the last renewal found it (`lease_in_group_ms`). The process only renews. It
counts a lease that ran out in LOST, and the parent decides to join again. It outlives its parent by one message, which
ends the lease of that very process (`owner.py`), and by END_MS at most; "word" is the surest word that this log needs.
Without a pidfd the kernel kills it with its parent, and the lease runs out.

Rules of this file: the process renews only while the parent makes progress, so that a parent that is stopped or hangs
does not keep its tasks. A renewal says how busy the parent is, so that others see it while its interpreter is held. It
must not import RocksDB, a session or user code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

from standfast.replication.lease.owner import OwnerWatch
from standfast.replication.lease.renewal import StallWatch, Word
from standfast.replication.leases import BusyWatch, lease_in_group_ms, renewal_interval_ms
from standfast.replication.log import Group, Log
from standfast.replication.progress import (
    ALLOWED,
    GAP,
    LOOKED,
    LOST,
    RENEWED,
    STALLED,
    STALLS,
    TRIES,
    LeaseProgress,
)
from standfast.replication.tail.open_log import open_log
from standfast.replication.takeover import MemberPlan
from standfast.store.clock import SystemClock
from standfast.store.errors import Corruption, Fenced, InvalidRequest, StandfastError, Unavailable
from standfast.store.log import print_as_parent
from standfast.store.process.parent import bind_to_parent

READ_BYTES = 1 << 16
GOODBYE_MS = 1_000  # from the end of the parent's pipes to its own, which takes 0.2 s with much memory
SETTLE_MS = 100  # until the log has the last requests of a dead process, where it does not refuse them
RETRY_MS = 200


class LeaseOrders:
    """Lines of the standard input. Its end ends the process, unless an owner is watched: that may be about to end."""

    def __init__(self) -> None:
        self.owner: OwnerWatch | None = None
        self._pending = b""

    def next(self, wait_ms: int) -> dict[str, Any] | None:
        """The next line, or None after `wait_ms` without one, or once the owner has news."""
        clock = SystemClock()
        until_ms = clock.monotonic_ms() + wait_ms
        owner = () if self.owner is None else self.owner.handles
        while b"\n" not in self._pending:
            left_ms = until_ms - clock.monotonic_ms()
            if left_ms <= 0 or 0 not in select.select([0, *owner], [], [], left_ms / 1_000)[0]:
                return None
            piece = os.read(0, READ_BYTES)
            if not piece:
                # The parent has ended, or is about to, or has left this process behind.
                if self.owner is None or not self.owner.gone_within(GOODBYE_MS):
                    os._exit(0)
                return None
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        if "done" in order:
            os._exit(0)  # the parent gives the lease up; the log's clients need no goodbye
        return order


class Renewer:
    """Renews the lease, or reports once why it cannot."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._address: str = order["log"]
        self._progress = LeaseProgress(fd=order["words"])
        self._watch = StallWatch(order["max_stall_ms"])
        self._busy = BusyWatch()
        self._clock = SystemClock()
        self._log: Log | None = None
        self._group: Group | None = None
        self._renewed_ms = -1
        self._size = 0  # of the group, as of the last renewal
        self._said = ""

    def connect(self) -> bool:
        """Open the log ahead of the first renewal; False while the log does not answer."""
        try:
            # Not created: an empty log in place of one that was moved away would keep it from being put back.
            self._log = self._log or open_log(self._address, create=False)
        except (Unavailable, Corruption) as error:
            self._say(str(error))
        return self._log is not None

    def renew(self, group: str, member: str, lease_ms: int) -> int:
        """Renew once, unless the parent makes no progress; returns the milliseconds until the next renewal."""
        given_ms = lease_in_group_ms(lease_ms, self._size)
        self._renew(group, member, given_ms)
        # A group that is larger now gets a longer lease by the next renewal, which must come within this one.
        return renewal_interval_ms(min(given_ms, lease_in_group_ms(lease_ms, self._size)))

    def _renew(self, group: str, member: str, lease_ms: int) -> None:
        words, now_ms = self._progress.words, self._clock.monotonic_ms()
        still = self._watch.look(self._progress.counts(), words[ALLOWED], now_ms)
        busy = self._busy.look(self._progress.loops(), words[LOOKED], lease_ms, now_ms)
        if still and not words[STALLED]:
            words[STALLS] += 1
        words[STALLED] = 1 if still else 0
        if still or not self.connect():
            words[TRIES] += 1
            return
        assert self._log is not None
        try:
            if self._group is None:
                self._group = self._log.group(group)
            self._size = len(self._group.heartbeat(member, lease_ms=lease_ms, busy=busy).members)
        except Fenced:
            words[LOST] += 1
            self._renewed_ms = -1  # LOST counts this gap, so GAP must not
            self._size = 0  # the parent joins again, perhaps with a shorter lease
        except (Unavailable, Corruption) as error:  # also damage: an operator may put the log back
            self._say(str(error))
        else:
            now_ms = self._clock.monotonic_ms()
            if self._renewed_ms >= 0:
                words[GAP] = max(words[GAP], now_ms - self._renewed_ms)
            self._renewed_ms = now_ms
            self._said = ""
            words[RENEWED] += 1
        words[TRIES] += 1  # after the attempt: one that hangs must look silent to the parent

    def end(self, target: dict[str, Any]) -> None:
        """End the lease of the owner, which has ended, unless another process has joined in its place."""
        if self._log is None:
            return
        token = target["process"]
        if target["word"] == Word.GONE.value:
            SystemClock().sleep_ms(SETTLE_MS)
        try:
            group = self._group or self._log.group(target["group"])
            group.leave(target["member"], only=lambda text: _token(text) == token)
        except (Unavailable, Corruption):  # then it runs out
            return

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


def _token(metadata: str) -> str | None:
    """The token of the process that wrote a member's metadata; None if they do not say."""
    try:
        process = MemberPlan.from_json(metadata).process
    except InvalidRequest:
        return None
    return None if process is None else process.token


def say(text: str) -> None:
    """Write one line for the parent's log; if no parent reads, the process ends."""
    try:
        os.write(1, " ".join(text.split()).encode(errors="replace") + b"\n")
    except BrokenPipeError:
        os._exit(0)


def main() -> int:
    """Serve until the standard input ends."""
    # The parent's own end decides: a supervisor that signals all processes of a unit must not end the lease first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    orders = LeaseOrders()
    clock = SystemClock()
    order = None
    while order is None:
        order = orders.next(RETRY_MS)
    owner = None
    if order["owner"] >= 0:
        owner = orders.owner = OwnerWatch(order["owner"])
    elif not bind_to_parent(order["parent"]):
        return 0
    renewer = Renewer(order)
    target: dict[str, Any] | None = None
    renewer.connect()
    while target is None:
        if owner is not None and owner.word() is Word.GONE:
            return 0  # it has joined no group
        target = orders.next(RETRY_MS)
    next_ms = clock.monotonic_ms()
    while True:
        word = None if owner is None else owner.word()
        if word is Word.GONE or (word is Word.GOING and target["word"] == Word.GOING.value):
            if target["word"]:
                renewer.end(target)
            return 0
        interval_ms = renewer.renew(target["group"], target["member"], target["lease_ms"])
        # After a delay, such as a log that hung, one renewal now is enough: missed ones are not made up.
        next_ms = max(next_ms + interval_ms, clock.monotonic_ms())
        orders.next(max(next_ms - clock.monotonic_ms(), 1))  # a pause that the end of stdin cuts short


def run() -> int:
    """Run `main` and report an error that ends it to the parent."""
    print_as_parent()
    try:
        return main()
    except StandfastError as error:
        say(f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    code = run()
    sys.stdout.flush()
    os._exit(code)  # threads of a client that hangs must not keep the process
