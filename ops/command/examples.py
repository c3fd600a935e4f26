"""Examples that end the help of each command, and stand in the reference of the command line.

Rules of this file: plain data. Each line is a whole command that the parser accepts; a test parses all of them. With
the two spaces before it, a line fits a terminal of 80 columns.
"""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "standfast": (
        "standfast demo",
        "standfast status --state-dir ./state",
    ),
    "standfast serve": (
        "standfast serve --config standfast.toml",
        "standfast serve --config standfast.toml --set http.port=8080 --check",
    ),
    "standfast run": (
        "standfast run shop:app",
        "standfast run shop.main:app --workers auto --config shop.toml",
    ),
    "standfast drain": ("standfast drain --state-dir ./state --app counts --wait 30s",),
    "standfast status": (
        "standfast status --state-dir ./state --app counts",
        "standfast status --url http://localhost:8080 --watch 2",
    ),
    "standfast tasks": (
        "standfast tasks --state-dir ./state --app counts --wide",
        "standfast tasks --offline ./state --app counts --json",
    ),
    "standfast lag": (
        "standfast lag --state-dir ./state --app counts",
        "standfast lag --url http://localhost:8080 --watch 5",
    ),
    "standfast health": (
        "standfast health --state-dir ./state --app counts",
        "standfast health --url http://localhost:8080 --ready",
    ),
    "standfast get": (
        'standfast get counts "hello" --state-dir ./state --app counts',
        "standfast get prices AAPL --as-of 2013-01-01T08:00:00Z --offline ./state",
    ),
    "standfast scan": (
        "standfast scan counts --prefix he --limit 20 --state-dir ./state",
        "standfast scan counts --from a --to f --offline ./state --json",
    ),
    "standfast fetch": (
        "standfast fetch hourly JFK --start 2013-01-01T08:00:00Z --state-dir ./state",
        "standfast fetch visits alice --offline ./state --utc",
    ),
    "standfast snapshot": (
        "standfast snapshot create before-upgrade --state-dir ./state --app counts",
        "standfast snapshot list --from s3://backup/state --app counts",
    ),
    "standfast snapshot create": (
        "standfast snapshot create --to s3://backup/x --state-dir ./state --app counts",
        "standfast snapshot create --app counts --log kafka://localhost:9092",
    ),
    "standfast snapshot list": (
        "standfast snapshot list --state-dir ./state --app counts",
        "standfast snapshot list --from s3://backup/state --app counts",
    ),
    "standfast snapshot show": ("standfast snapshot show 0_3/12-4711 --from /backup --app counts",),
    "standfast snapshot verify": (
        "standfast snapshot verify --from /backup --app counts",
        "standfast snapshot verify 0_3/12-4711 --from /backup --app counts",
    ),
    "standfast snapshot restore": (
        "standfast snapshot restore --from /backup --app counts --state-dir ./state",
        "standfast snapshot restore --from /b --app counts --checkpoint 7 --as other",
    ),
    "standfast snapshot prune": (
        "standfast snapshot prune --from /backup --app counts --dry-run",
        "standfast snapshot prune --from /backup --app counts --keep 5 --keep-for 7d",
    ),
    "standfast changelog": (
        "standfast changelog stats --app counts --store counts --log sqlite:///./log",
        "standfast changelog tail words --limit 3 --log kafka://localhost:9092",
    ),
    "standfast changelog head": (
        "standfast changelog head --app counts --store counts --log sqlite:///./log",
        "standfast changelog head words --partition 0 --log kafka://localhost:9092",
    ),
    "standfast changelog tail": (
        "standfast changelog tail --app counts --store counts --log sqlite:///./log",
        "standfast changelog tail words --limit 3 --log kafka://localhost:9092",
    ),
    "standfast changelog stats": (
        "standfast changelog stats --app counts --store counts --log sqlite:///./log",
        "standfast changelog stats words --wide --log kafka://localhost:9092",
    ),
    "standfast topics": (
        "standfast topics --log sqlite:///./log",
        "standfast topics --log kafka://localhost:9092 --json",
    ),
    "standfast config": (
        "standfast config show standfast.toml --origin",
        "standfast config validate standfast.toml",
    ),
    "standfast config show": (
        "standfast config show standfast.toml --origin",
        "standfast config show --set http.port=8080 --json",
    ),
    "standfast config schema": ("standfast config schema",),
    "standfast config validate": ("standfast config validate standfast.toml",),
    "standfast verify": (
        "standfast verify --state-dir ./state --app counts --log sqlite:///./log",
        "standfast verify --spark --snapshot ./rebuilt --log kafka://localhost:9092",
    ),
    "standfast rebuild": (
        "standfast rebuild --config app.toml --store counts:keyvalue --plan",
        "standfast rebuild --config app.toml --store counts:keyvalue --out ./rebuilt",
    ),
    "standfast gc": (
        "standfast gc ./rebuilt",
        "standfast gc ./rebuilt --delete --older-than 7d",
    ),
    "standfast restore": (
        "standfast restore --from ./rebuilt --state-dir ./state --log sqlite:///./log",
        "standfast restore --dry-run --config app.toml --snapshots s3://backup/state",
    ),
    "standfast pipeline": (
        "standfast pipeline --state-dir ./state --log sqlite:///./log --plan",
        "standfast pipeline --state-dir ./state --log sqlite:///./log --out ./report",
    ),
    "standfast doctor": (
        "standfast doctor --app counts --log kafka://localhost:9092",
        "standfast doctor --app counts --log sqlite:///./log --store counts:keyvalue",
    ),
    "standfast topic": ("standfast topic create words --partitions 4 --log sqlite:///./log",),
    "standfast topic create": (
        "standfast topic create words --partitions 4 --log sqlite:///./log",
        "standfast topic create words --partitions 4 --log kafka://localhost:9092",
    ),
    "standfast topic write": (
        "standfast topic write words records.jsonl --log sqlite:///./log",
        "standfast topic write words --value-serde string --log kafka://localhost:9092",
    ),
    "standfast topic release": (
        "standfast topic release a-b-kv-changelog --app a --log sqlite:///./log",
        "standfast topic release a-b-kv-changelog --app a --log kafka://localhost:9092",
    ),
    "standfast reset": (
        "standfast reset --app counts --log sqlite:///./log --dry-run",
        "standfast reset --app counts --log sqlite:///./log --state-dir ./state",
    ),
    "standfast deaths": (
        "standfast deaths --app counts --log sqlite:///./log",
        "standfast deaths --app counts --log sqlite:///./log --forget 0_3",
    ),
    "standfast broker": (
        "standfast broker up",
        "standfast broker down",
    ),
    "standfast broker up": (
        "standfast broker up",
        "standfast broker up --dir ./broker --port 9092",
    ),
    "standfast broker status": ("standfast broker status --dir ./broker",),
    "standfast broker down": ("standfast broker down --dir ./broker",),
    "standfast replica": (
        "standfast replica --app orders --log kafka://host:9092 --store totals:keyvalue",
        "standfast replica --config o.toml --store hourly:window:size=1h,retention=2d",
    ),
    "standfast placement": (
        "standfast placement --app delays --log sqlite:///./log",
        "standfast placement --app delays --log kafka://host:9092 --task 0_3",
    ),
    "standfast bench": ("standfast bench restore --records 100000",),
    "standfast bench restore": (
        "standfast bench restore --records 100000",
        "standfast bench restore --workers 0,1,2",
    ),
    "standfast demo": ("standfast demo",),
}
