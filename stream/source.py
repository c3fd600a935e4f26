"""Sources of one's own: the class that an application implements, and the context that it collects into.

    class Lines(Source):
        def run(self, context):
            for number in range(context.position, 100):
                context.collect(Record(None, f"line {number}", 0), number + 1)

    position   next offset to read: 0 at first, then the offset of the last collected record; a run begins at the
               committed one
    offset     position behind the record: the run after this record's commit begins there; it grows with each record

A record and its offset are handed over together, and one thread processes and commits: a commit has either both, the
effects of the record and its offset, or none (Flink's SourceFunction holds the checkpoint lock for that).

Rules of this file: no thread, queue or clock; `Port` has them. An offset that does not grow fails the source even if
`run` swallows the error, since the position of its records would be lost.
"""

from __future__ import annotations

from typing import Any, Never, Protocol, Self

from standfast.store.arguments import checked, no_option
from standfast.store.errors import InvalidRequest
from standfast.stream.record import Record

OFFSET_MAX = 2**62 - 1  # as of every log


class Port(Protocol):
    """The other side of a context: the thread's queue, or the test driver."""

    @property
    def cancelled(self) -> bool:
        """Whether the run should end."""
        ...

    def put(self, record: Record, offset: int) -> None:
        """Hand a record over; waits while there is no room. Raises Closed once the run is cancelled."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the run is cancelled; returns whether it is."""
        ...

    def fail(self, error: Exception) -> None:
        """Fail the task with this error, whatever `run` does."""
        ...

    def wall_ms(self) -> int:
        """The wall clock."""
        ...


@checked(InvalidRequest)
class SourceContext:
    """The access of a running source to its task. `partition` is its number among the `partitions` of the source."""

    def __init__(self, name: str, partition: int, partitions: int, position: int, port: Port) -> None:
        self.name = name
        self.partition = partition
        self.partitions = partitions
        self._position = position
        self._port = port

    @property
    def position(self) -> int:
        """The next offset to read: at first the committed one (0: none), then that of the last collected record."""
        return self._position

    @property
    def cancelled(self) -> bool:
        """Whether `run` should return, since the task leaves this instance, starts again, or the application ends."""
        return self._port.cancelled

    @property
    def wall_clock_ms(self) -> int:
        """The wall clock, such as for the timestamp of a record that has none."""
        return self._port.wall_ms()

    def collect(self, record: Record, offset: int, **unknown: Never) -> None:
        """Hand over a record; `offset` is the next one to read, where `run` begins again behind this record.

        Waits while the application is busy or may not process. Raises Closed once the run is cancelled: let it end
        `run`. Raises InvalidRequest, and fails the task, for anything but a Record and for an offset that is not
        larger than `position`: several records of one place are one record, divided by a `flat_map`. One thread at a
        time may call this.
        """
        if unknown:
            raise no_option(SourceContext.collect, unknown)
        problem = self._problem(record, offset)
        if problem is not None:
            error = InvalidRequest(f"source {self.name!r}, partition {self.partition}: {problem}")
            self._port.fail(error)
            raise error
        self._port.put(record, offset)
        self._position = offset

    def wait(self, seconds: float) -> bool:
        """Wait for so many seconds, or until the run is cancelled; returns whether it is. For a source that polls."""
        return self._port.wait(seconds)

    def _problem(self, record: object, offset: object) -> str | None:
        if type(record) is not Record:
            return f"it collects {type(record).__name__}: give a standfast.Record(key, value, timestamp)"
        if type(record.timestamp) is not int:
            return (
                f"it collects a record with timestamp {record.timestamp!r:.100}: give whole milliseconds since the "
                "epoch, such as context.wall_clock_ms"
            )
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            return f"offset {offset!r:.100} is not valid: give a whole number from 0 to 2**62-1"
        if offset <= self._position:
            word = "stays at" if offset == self._position else f"goes back from {self._position} to"
            return (
                f"its offset {word} {offset}: give the next offset to read, which grows with each record; several "
                "records of one offset are one record, divided by a flat_map"
            )
        return None


class Source:
    """Base class of a source of one's own: `run` reads records from any place and collects them.

    Each run has an object of its own, made by calling the class again with the arguments of the given object: so
    `__init__` takes settings and opens nothing, and no run sees what `cancel` left in an earlier one.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        # Not by assignment, which a frozen dataclass refuses.
        object.__setattr__(made, "_arguments", (args, kwargs))
        return made

    def __init__(self) -> None:
        """No arguments; without this, object's own would ignore those that a subclass does not take."""

    def run(self, context: SourceContext) -> None:
        """Collect records from `context.position` on, in a thread of this source alone.

        Returning means that there are no more records (until the task starts again), or that the run was cancelled.
        An exception fails the task, and the restart strategy says when `run` begins again at the committed offset.
        """
        raise InvalidRequest(f"source {type(self).__name__} defines no run(self, context)")

    def cancel(self) -> None:
        """Make `run` return soon, such as by closing the file or connection that it reads; another thread calls this.

        Needed only where `run` waits elsewhere than in `context.collect` and `context.wait`, which end by themselves.
        """

    def another(self) -> Self:
        """A new object with the same arguments."""
        args, kwargs = self._arguments
        return type(self)(*args, **kwargs)
