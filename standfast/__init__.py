"""standfast: durable local state for stream applications, with standbys that take over at once.

    import standfast as sf
    session = sf.Session(app="delays", log="sqlite:///./log", state_dir="./state", stores=[...])

The front door: every public name is importable from here. It imports all rooms, so that it also says to stream, which
may not import ops, where the servers of `http_port=` are.

Rules of this file: no logic and no state. A name is loaded when it is first used (PEP 562), so that
`standfast --version` and a program that needs only the stores stay quick. A new public name goes into three
lists here: the imports for type checkers, `__all__` and `_HOMES`; `tests/repo/test_front_door.py` compares them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from standfast.store.base.version import __version__
from standfast.stream.http_servers import HttpServers, found_by

if TYPE_CHECKING:
    from standfast.ops.client.connect import connect
    from standfast.replication.listeners import Listener
    from standfast.replication.log import Outgoing, TopicPolicy
    from standfast.replication.offsets import TopicPartition
    from standfast.replication.tail.open_log import open_log
    from standfast.restore.snapshot.policy import SnapshotPolicy
    from standfast.store.buffer.rows import StoreIterator
    from standfast.store.errors import (
        Backpressure,
        BadConfig,
        Closed,
        CommitUnknown,
        Corruption,
        DiskFull,
        Fenced,
        Held,
        InternalError,
        InvalidRequest,
        ListenerFailed,
        NotReady,
        StandfastError,
        StateLost,
        TooLarge,
        Unavailable,
        UnknownStore,
        WorkerFailed,
    )
    from standfast.store.results import (
        PUT_NOT_VALID,
        VALID_TO_UNDEFINED,
        ValueAndTimestamp,
        VersionedRecord,
        Windowed,
    )
    from standfast.store.schema import serde
    from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore
    from standfast.store.types.keyvalue import KeyValueState
    from standfast.store.types.session import SessionState
    from standfast.store.types.versioned import VersionedState
    from standfast.store.types.window import WindowState
    from standfast.stream.app import testing
    from standfast.stream.app.app import App
    from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE
    from standfast.stream.punctuation import STREAM_TIME, WALL_CLOCK_TIME
    from standfast.stream.record import Record
    from standfast.stream.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
    from standfast.stream.session import aio
    from standfast.stream.session.replica import Replica
    from standfast.stream.session.session import Session
    from standfast.stream.source import Source, SourceContext
    from standfast.stream.timer import EVENT_TIME, PROCESSING_TIME, Timer
    from standfast.stream.topology.calls import Calls
    from standfast.stream.topology.processor import Context, Processor
    from standfast.stream.topology.sources import ARRIVAL_TIME
    from standfast.stream.watermarks import BoundedDisorder, Punctuated
    from standfast.stream.windows import (
        HoppingWindows,
        SessionWindows,
        SlidingWindows,
        TumblingWindows,
        UnlimitedWindows,
        Window,
    )

__all__ = [
    "__version__",
    # stores
    "KeyValueStore",
    "WindowStore",
    "SessionStore",
    "VersionedStore",
    "StoreSpec",
    "serde",
    # their state in a task
    "KeyValueState",
    "WindowState",
    "SessionState",
    "VersionedState",
    "StoreIterator",
    # results of reads and writes
    "ValueAndTimestamp",
    "VersionedRecord",
    "Windowed",
    "VALID_TO_UNDEFINED",
    "PUT_NOT_VALID",
    # state under an external consumer, and the library's own loop
    "Session",
    "connect",
    "Replica",
    "aio",
    "App",
    "Processor",
    "Context",
    "Calls",
    "Record",
    "Source",
    "SourceContext",
    "Listener",
    "SnapshotPolicy",
    "testing",
    # the log itself, to create topics and write to them
    "open_log",
    "TopicPartition",
    "TopicPolicy",
    "Outgoing",
    # time
    "STREAM_TIME",
    "WALL_CLOCK_TIME",
    "EVENT_TIME",
    "PROCESSING_TIME",
    "Timer",
    "ARRIVAL_TIME",
    "BoundedDisorder",
    "Punctuated",
    # restart strategies of failed tasks
    "FixedDelay",
    "ExponentialDelay",
    "FailureRate",
    "NoRestart",
    # windows
    "ON_WINDOW_UPDATE",
    "ON_WINDOW_CLOSE",
    "TumblingWindows",
    "HoppingWindows",
    "SlidingWindows",
    "SessionWindows",
    "UnlimitedWindows",
    "Window",
    # errors
    "StandfastError",
    "InvalidRequest",
    "UnknownStore",
    "BadConfig",
    "NotReady",
    "Backpressure",
    "Unavailable",
    "Held",
    "DiskFull",
    "CommitUnknown",
    "StateLost",
    "TooLarge",
    "Fenced",
    "Corruption",
    "Closed",
    "WorkerFailed",
    "ListenerFailed",
    "InternalError",
]

# Home of each name: "module" for a module, "module:name" for a name in it.
_HOMES = {
    "KeyValueStore": "standfast.store.specs:KeyValueStore",
    "WindowStore": "standfast.store.specs:WindowStore",
    "SessionStore": "standfast.store.specs:SessionStore",
    "VersionedStore": "standfast.store.specs:VersionedStore",
    "StoreSpec": "standfast.store.specs:StoreSpec",
    "serde": "standfast.store.schema.serde",
    "KeyValueState": "standfast.store.types.keyvalue:KeyValueState",
    "WindowState": "standfast.store.types.window:WindowState",
    "SessionState": "standfast.store.types.session:SessionState",
    "VersionedState": "standfast.store.types.versioned:VersionedState",
    "StoreIterator": "standfast.store.buffer.rows:StoreIterator",
    "ValueAndTimestamp": "standfast.store.results:ValueAndTimestamp",
    "VersionedRecord": "standfast.store.results:VersionedRecord",
    "Windowed": "standfast.store.results:Windowed",
    "VALID_TO_UNDEFINED": "standfast.store.results:VALID_TO_UNDEFINED",
    "PUT_NOT_VALID": "standfast.store.results:PUT_NOT_VALID",
    "Session": "standfast.stream.session.session:Session",
    "connect": "standfast.ops.client.connect:connect",
    "Replica": "standfast.stream.session.replica:Replica",
    "aio": "standfast.stream.session.aio",
    "Listener": "standfast.replication.listeners:Listener",
    "SnapshotPolicy": "standfast.restore.snapshot.policy:SnapshotPolicy",
    "App": "standfast.stream.app.app:App",
    "Processor": "standfast.stream.topology.processor:Processor",
    "testing": "standfast.stream.app.testing",
    "open_log": "standfast.replication.tail.open_log:open_log",
    "TopicPartition": "standfast.replication.offsets:TopicPartition",
    "TopicPolicy": "standfast.replication.log:TopicPolicy",
    "Outgoing": "standfast.replication.log:Outgoing",
    "ON_WINDOW_UPDATE": "standfast.stream.emit:ON_WINDOW_UPDATE",
    "ON_WINDOW_CLOSE": "standfast.stream.emit:ON_WINDOW_CLOSE",
    "Calls": "standfast.stream.topology.calls:Calls",
    "Context": "standfast.stream.topology.processor:Context",
    "Record": "standfast.stream.record:Record",
    "Source": "standfast.stream.source:Source",
    "SourceContext": "standfast.stream.source:SourceContext",
    "STREAM_TIME": "standfast.stream.punctuation:STREAM_TIME",
    "WALL_CLOCK_TIME": "standfast.stream.punctuation:WALL_CLOCK_TIME",
    "ExponentialDelay": "standfast.stream.restart:ExponentialDelay",
    "FailureRate": "standfast.stream.restart:FailureRate",
    "FixedDelay": "standfast.stream.restart:FixedDelay",
    "NoRestart": "standfast.stream.restart:NoRestart",
    "ARRIVAL_TIME": "standfast.stream.topology.sources:ARRIVAL_TIME",
    "EVENT_TIME": "standfast.stream.timer:EVENT_TIME",
    "PROCESSING_TIME": "standfast.stream.timer:PROCESSING_TIME",
    "Timer": "standfast.stream.timer:Timer",
    "BoundedDisorder": "standfast.stream.watermarks:BoundedDisorder",
    "Punctuated": "standfast.stream.watermarks:Punctuated",
    "TumblingWindows": "standfast.stream.windows:TumblingWindows",
    "HoppingWindows": "standfast.stream.windows:HoppingWindows",
    "SlidingWindows": "standfast.stream.windows:SlidingWindows",
    "SessionWindows": "standfast.stream.windows:SessionWindows",
    "UnlimitedWindows": "standfast.stream.windows:UnlimitedWindows",
    "Window": "standfast.stream.windows:Window",
    "StandfastError": "standfast.store.errors:StandfastError",
    "InvalidRequest": "standfast.store.errors:InvalidRequest",
    "UnknownStore": "standfast.store.errors:UnknownStore",
    "BadConfig": "standfast.store.errors:BadConfig",
    "NotReady": "standfast.store.errors:NotReady",
    "Backpressure": "standfast.store.errors:Backpressure",
    "Unavailable": "standfast.store.errors:Unavailable",
    "Held": "standfast.store.errors:Held",
    "DiskFull": "standfast.store.errors:DiskFull",
    "CommitUnknown": "standfast.store.errors:CommitUnknown",
    "StateLost": "standfast.store.errors:StateLost",
    "TooLarge": "standfast.store.errors:TooLarge",
    "Fenced": "standfast.store.errors:Fenced",
    "Corruption": "standfast.store.errors:Corruption",
    "Closed": "standfast.store.errors:Closed",
    "WorkerFailed": "standfast.store.errors:WorkerFailed",
    "ListenerFailed": "standfast.store.errors:ListenerFailed",
    "InternalError": "standfast.store.errors:InternalError",
}


@found_by
def _http_servers() -> HttpServers:
    from standfast.ops.http import servers

    return servers


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'standfast' has no public name {name!r}")
    module_name, _, attribute = home.partition(":")
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
