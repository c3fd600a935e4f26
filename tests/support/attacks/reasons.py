"""Public names that are not attacked by themselves, each with the reason; a name without one needs an entry.

Rules of this file: the reason of a class stands for all of its members. Single methods are named only where they are
the library's own, on a class whose other methods programs call.
"""

from __future__ import annotations

OVERRIDDEN = "the program's own code, which the library calls: App.run, the driver and listener_raises do"
VALUE = "a value: it holds no thread, file or lock"
CLASSES: dict[str, str] = {
    "Processor": OVERRIDDEN,
    "Source": OVERRIDDEN,
    "Listener": OVERRIDDEN,
    "BoundedDisorder": VALUE,
    "Punctuated": VALUE,
    "serde.avro": VALUE,
    "serde.json_schema": VALUE,
    "serde.protobuf": VALUE,
    "serde.bytes": VALUE,
    "serde.float64": VALUE,
    "serde.int64": VALUE,
    "serde.json": VALUE,
    "serde.msgpack": VALUE,
    "serde.pair": VALUE,
    "serde.string": VALUE,
    "serde.Registry": "a client of another server, without rows",
    "connect": "its session lives in another process: tests/unit/ops/test_connect_wire.py",
    "SidecarClient": "its session lives in another process: tests/unit/ops/test_connect_wire.py",
    "SidecarTask": "its session lives in another process: tests/unit/ops/test_connect_wire.py",
}

OF_THE_TASK = "called by the task that has the store: its restore, commit and expiry"
OF_RESULTS = "called by aggregations and joins on the rows of their stores, in the thread of the loop"
OF_THE_DOORS = "called by readers that have serialised keys, in tests/unit/store/test_number_ranges.py"
OF_THE_LOOP = "called by the loop of an application, which alone has the task or the context"
OF_OPENING = "called by the session while it opens or closes a task, which no program has then"
OF_A_FORK = "called by the hook of a fork in the child, which has no other thread"
OF_WORKERS = "called by the process of a worker, or by its supervisor, between a program's calls"
MADE = "made by the library: a program never calls the class"
METHODS: dict[str, str] = {
    **dict.fromkeys(("KeyValueState", "WindowState", "SessionState", "VersionedState", "StoreIterator"), MADE),
    **dict.fromkeys(("Context", "SourceContext", "Producer", "Task"), MADE),
    **dict.fromkeys(("Log", "LogAdmin", "LogReader", "LogWriter", "Group"), MADE),
    **{
        f"{state}.{name}": OF_THE_TASK
        for state in ("KeyValueState", "WindowState", "SessionState", "VersionedState")
        for name in (
            "bind",
            "expired_families",
            "expired_ranges",
            "families",
            "forget_families",
            "logical_rows",
            "restore",
            "takes_family",
        )
    },
    **{
        f"{state}.ranged_by": OF_THE_DOORS
        for state in ("KeyValueState", "WindowState", "SessionState", "VersionedState")
    },
    "KeyValueState.range_raw": OF_THE_DOORS,
    "VersionedState.logical_rows_in_order": OF_THE_DOORS,
    "KeyValueState.rows_in_files": OF_THE_TASK,
    "KeyValueState.put_raw": OF_RESULTS,
    "KeyValueState.put_raw_all": OF_RESULTS,
    **{
        f"{state}.{name}": OF_RESULTS
        for state in ("WindowState", "SessionState")
        for name in ("get_row", "put_row", "rows_from", "rows_of")
    },
    **{
        f"Context.{name}": OF_THE_LOOP
        for name in (
            "before_watermark",
            "check",
            "child",
            "close",
            "on_flush",
            "on_silence",
            "on_watermark",
            "read_result",
            "send",
        )
    },
    **{f"Task.{name}": OF_THE_LOOP for name in ("commit_steps", "release", "rollback", "savepoint", "write_outputs")},
    **{
        f"Task.{name}": OF_OPENING
        for name in (
            "close",
            "count_in",
            "fail",
            "move",
            "open_writer",
            "know_outputs",
            "restate_sources",
            "resume_from_log",
            "tell_lost",
        )
    },
    **dict.fromkeys(("Session.join_checkpoints", "Session.lives", "Session.open_later"), OF_THE_LOOP),
    "Session.put_off": "called by aio.Session.commit alone, whose await was cancelled: AIO has that call",
    "Session.on_assign": "needs the Kafka client's consumer: tests/system/kafka",
    "aio.Session.on_assign": "needs the Kafka client's consumer: tests/system/kafka",
    "aio.Session.snapshot": "the blocking call in a thread, as `commit` is, which writes no row",
    "aio.Session.blocking": "the session that the awaits are made on",
    "aio.Session.close": "`async with` calls it: __aexit__",
    **dict.fromkeys(("Session.forked", "Task.forked", "testing.Driver.forked"), OF_A_FORK),
    **dict.fromkeys(("App.as_worker", "App.obey", "App.rests"), OF_WORKERS),
    "App.program": "a value that says how to start the program again",
}
