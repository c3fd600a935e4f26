"""Common clients, unchanged, on the RESP server: redis-py, redis-cli, redis and ioredis of Node, go-redis."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.fetched import Tool
from support.resp import RespBench

FOUND = {
    "set": "OK",
    "get": "1",
    "none": None,
    "mget": ["1", None],
    "many": 100,
    "multi": ["OK", "2"],
    "put": "OK",
    "window": "OK",
    "fetch": [0, "w"],
    "commit": [1, 1, 104],
    "offsets": ["flights", 1, 12],
    "keys": 100,
}


def run(program: list[str | Path], tool: Tool, given: str = "") -> str:
    done = subprocess.run(
        program, input=given, capture_output=True, text=True, timeout=60, env={**os.environ, **tool.environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(found: dict[str, Any]) -> None:
    assert "EXPIRE is refused" in found.pop("refused")
    assert found == FOUND


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_unchanged(resp_bench: RespBench, protocol: int) -> None:
    resp_bench.open()
    url = f"unix://kv:x@{resp_bench.path}?db=1"
    with redis.Redis.from_url(url, protocol=protocol, decode_responses=True) as client:
        found: dict[str, Any] = {"set": "OK" if client.set("a", "1") else "", "get": client.get("a")}
        found["none"] = client.get("none")
        found["mget"] = client.mget("a", "none")
        with client.pipeline(transaction=False) as pipe:
            for number in range(100):
                pipe.set(f"k{number}", f"v{number}")
            found["many"] = len(pipe.execute())
        with client.pipeline() as multi:
            multi.set("b", "2")
            multi.get("b")
            found["multi"] = ["OK" if one is True else one for one in multi.execute()]
        found["put"] = client.execute_command("SF.PUT", "other", "x", "y")
        found["window"] = client.execute_command("SF.WPUT", "win", "k", 0, "w")
        found["fetch"] = client.execute_command("SF.WFETCH", "win", "k", 0, 10)
        found["commit"] = client.execute_command(
            "SF.COMMIT", "SEQ", 1, "GROUP", "app", "OFFSETS", "flights", 1, 12
        )  # fmt: skip
        found["offsets"] = client.execute_command("SF.OFFSETS")
        found["keys"] = len(list(client.scan_iter("k*", count=30)))
        with pytest.raises(redis.ResponseError) as refused:
            client.expire("a", 5)
        found["refused"] = str(refused.value)
        check(found)
        assert client.ping()
        assert client.exists("a", "b") == 2
        assert client.getdel("b") == "2"
        assert client.delete("a", "none") == 1
        assert client.set("n", "1", nx=True)
        assert client.set("n", "2", nx=True) is None
        assert client.set("n", "3", get=True) == "1"
        assert client.strlen("n") == 1
        assert client.dbsize() > 0
        assert client.mset({"x": "1", "y": "2"})
        assert client.info()["loading"] == 0
        assert client.client_id() > 0
        assert client.config_get("*") == {}
        assert client.command_count() > 40
        with pytest.raises(redis.ResponseError, match="do not expire"):
            client.set("a", "1", ex=5)
        with pytest.raises(redis.ResponseError, match="WATCH is refused"):
            client.pipeline().watch("a")


def test_redis_py_is_told_the_reasons(resp_bench: RespBench) -> None:
    session = resp_bench.session()
    session.assign(active=[0], standby=[1])
    resp_bench.open(session=session)
    retry = Retry(NoBackoff(), 0)
    for partition, error in ((0, redis.BusyLoadingError), (1, redis.ReadOnlyError), (2, redis.ResponseError)):
        client = redis.Redis.from_url(f"unix://kv:x@{resp_bench.path}?db={partition}", retry=retry)
        with pytest.raises(error):
            client.set("a", "1")
        client.close()


def test_redis_py_over_asyncio(resp_bench: RespBench) -> None:
    import asyncio

    import redis.asyncio

    resp_bench.open()

    async def use() -> tuple[Any, Any]:
        async with redis.asyncio.Redis.from_url(f"unix://kv:x@{resp_bench.path}?db=1", protocol=3) as client:
            await asyncio.gather(*(client.set(f"k{number}", "v") for number in range(50)))
            return await client.get("k49"), await client.execute_command("SF.COMMIT", "SEQ", 1)

    assert asyncio.run(use()) == (b"v", [1, 1, 50])


def test_redis_cli_works_unchanged(resp_bench: RespBench, redis_cli: Tool) -> None:
    resp_bench.open()
    base: list[str | Path] = [redis_cli.program, "-s", resp_bench.path, "--user", "kv", "--pass", "x", "-n", "1"]
    base.append("--no-auth-warning")
    asked = 'SET a 1\nGET a\nGET none\nMULTI\nSET b 2\nGET b\nEXEC\nSF.PUT other x y\nSF.RANGE other "" ""\n'
    asked += "SF.COMMIT SEQ 1 GROUP app OFFSETS flights 1 12\nSF.OFFSETS\nEXPIRE a 5\n"
    for protocol in ([], ["-3"]):
        assert run([*base, *protocol, "PING"], redis_cli) == "PONG\n"
    told = run([*base, "--no-raw"], redis_cli, asked).splitlines()
    assert told[:3] == ["OK", '"1"', "(nil)"]
    assert told[3:8] == ["OK", "QUEUED", "QUEUED", "1) OK", '2) "2"']
    assert told[8:11] == ["OK", '1) "x"', '2) "y"']
    assert told[11:14] == ["1) (integer) 1", "2) (integer) 1", "3) (integer) 3"]
    assert told[14:17] == ['1) "flights"', "2) (integer) 1", "3) (integer) 12"]
    assert told[17].startswith("(error) ERR EXPIRE is refused")
    assert run([*base, "-3", "GET", "a"], redis_cli) == "1\n"
    assert run([*base, "--scan", "--pattern", "a*"], redis_cli) == "a\n"
    assert run([*base, "KEYS", "*"], redis_cli) == "a\nb\n"
    assert [run([*base, *asked], redis_cli) for asked in (["TYPE", "a"], ["TTL", "a"])] == ["string\n", "-1\n"]
    assert "keys=2" in run([*base, "INFO", "keyspace"], redis_cli)
    assert "Biggest string found" in run([*base, "--bigkeys"], redis_cli)
    # A write whose connection ends without a commit is lost; the next one goes on, and its offsets are refused.
    assert run([*base, "SET", "c", "3"], redis_cli) == "OK\n"
    assert run([*base, "GET", "c"], redis_cli) == "\n"
    assert run([*base, "SET", "c", "4"], redis_cli) == "OK\n"
    refused = run([*base, "SF.COMMIT", "EPOCH", "1", "OFFSETS", "flights", "1", "13"], redis_cli)
    assert "FENCED" in refused
    assert "SF.OFFSETS" in refused
    assert "flights" in run([*base, "SF.OFFSETS"], redis_cli)


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_node_redis_works_unchanged(resp_bench: RespBench, node_client: Tool, protocol: str) -> None:
    resp_bench.open()
    script = node_client.folder / "node_redis.mjs"
    check(json.loads(run([node_client.program, script, resp_bench.path, protocol], node_client)))


def test_ioredis_works_unchanged(resp_bench: RespBench, node_client: Tool) -> None:
    resp_bench.open()
    script = node_client.folder / "ioredis.mjs"
    check(json.loads(run([node_client.program, script, resp_bench.path], node_client)))


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_go_redis_works_unchanged(resp_bench: RespBench, go_client: Tool, protocol: str) -> None:
    resp_bench.open()
    check(json.loads(run([go_client.program, resp_bench.path, protocol], go_client)))
