"""A fuzzer of the HTTP API, on a real sidecar: every call of the OpenAPI document, and bytes that are no request.

See support.fuzz.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from support.fuzz import FUZZ_S, NUMBERS, Watched, fuzzes, mutated, pieces, quietly, rounds, seeded
from support.openapi import inlined
from support.serve import FOUR, Sidecar, Sidecars, wait_for

pytestmark = [pytest.mark.slow, fuzzes]
TOKEN = "correct-horse-battery"
OPEN_MAX = 40
GROWTH_MIB = 160
ANSWERED = re.compile(r'^standfast_rpc_requests_total\{code="(\d+)",door="http",[^}]*\} (\S+)$', re.MULTILINE)
NEVER = {"/v1/drain"}  # it would end the fuzzed sidecar; its schema is that of others
TEXTS = (
    "kv",
    "win",
    "a",
    "flights",
    "active",
    "standby",
    "",
    "0",
    "k1",
    "..",
    "%00",
    "\u00e9",
    "\ud83d\ude00",
    "x" * 300,
)
OTHER_PATHS = (
    "/",
    "/metrics",
    "/livez",
    "/readyz?verbose",
    "/startupz",
    "/events",
    "/page.js",
    "/none",
    "*",
    "//",
    "/v1",
)
HEADERS = (
    *(
        "Accept: application/json",
        "Accept: */*",
        "Origin: https://evil.example",
        "Host: evil.example",
        "Connection: close",
    ),
    *(
        "Expect: 100-continue",
        "Upgrade: websocket",
        "Authorization: Bearer x",
        "Authorization: Basic !!",
        "X: " + "y" * 4_000,
    ),
    *(
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 99999999999",
        "Transfer-Encoding: chunked",
        "X-Forwarded-For: 1",
    ),
    *(
        "Transfer-Encoding: gzip",
        "Content-Type: application/json",
        "Content-Type: text/html",
        "Range: bytes=0-5",
        "Cookie: a=b",
    ),
)


def fitting(rng: random.Random, schema: Any, name: str = "", depth: int = 0) -> Any:
    """A value that the schema may allow."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "object":
        known = schema.get("properties", {})
        needed = schema.get("required", ())
        return {
            key: fitting(rng, inner, key, depth + 1)
            for key, inner in known.items()
            if key in needed or rng.random() < 0.4
        }
    if kind == "array":
        most = min(schema.get("maxItems", 3), 3)
        return [
            fitting(rng, schema.get("items", {"type": "string"}), name, depth + 1) for _ in range(rng.randint(0, most))
        ]
    if kind == "integer":
        least = schema.get("minimum", 0)
        return rng.randint(least, min(schema.get("maximum", 2**31), least + (3 if name == "partition" else 2_000)))
    return {"boolean": rng.random() < 0.5, "null": None}.get(kind, rng.choice(TEXTS[:6]))


def bent(rng: random.Random, value: Any) -> Any:
    """The same value with one place changed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        inner = {**value, key: bent(rng, value[key])}
        if rng.random() < 0.1:
            del inner[key]
        return inner
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], bent(rng, value[at]), *value[at + 1 :]] * rng.choice((1, 1, 1, 200))
    deep: Any = []
    for _ in range(rng.choice((1, 20))):
        deep = [deep]
    return rng.choice((None, True, 1.5, "x" * 70_000, {}, deep, *NUMBERS, *TEXTS))


def body(rng: random.Random, schema: Any) -> bytes:
    """JSON that fits, that nearly fits, or that is invalid."""
    value = fitting(rng, schema)
    what = rng.randrange(4)
    if what == 0:
        value = bent(rng, value)
    made = json.dumps(value).encode()
    if what == 1:
        return mutated(rng, made)
    if what == 2 and rng.random() < 0.2:
        return rng.choice((b"[" * 50_000, b'{"a":' * 20_000, b'"' + b"\\u0000" * 10_000, b"\xff\xfe", b"NaN", b"1e999"))
    return made


class Calls:
    """Every call of the document that the server serves."""

    def __init__(self, document: dict[str, Any], token: str) -> None:
        self._token = f"Authorization: Bearer {token}"
        self._document = document
        self.all = [
            (method.upper(), path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if method in ("get", "put", "post", "delete") and path not in NEVER
        ]

    def request(self, rng: random.Random) -> bytes:
        """One request: its line, its headers, its body."""
        method, path, operation = rng.choice(self.all)
        for part in operation.get("parameters", ()):
            value = str(rng.choice((*NUMBERS, *TEXTS)))
            if part["in"] == "path":
                verbs = ("get", "scan", "fetch", value)
                value = rng.choice(verbs if part["name"] == "verb" else ("kv", "win", value))
                path = path.replace("{" + part["name"] + "}", quote(value, safe="", errors="surrogatepass"))
            elif rng.random() < 0.5:
                value = str(rng.choice((0, 1, 20, value))) if part["name"] == "wait" else value
                path += ("&" if "?" in path else "?") + f"{part['name']}={quote(value, errors='surrogatepass')}"
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        schema = inlined(schema, self._document)
        sent = body(rng, schema) if schema is not None else b"" if rng.random() < 0.9 else b"{}"
        if rng.random() < 0.1:
            path = rng.choice(OTHER_PATHS)
        elif rng.random() < 0.05:
            path, method = (
                path + "/" + "x" * rng.choice((1, 9_000, 40_000)),
                rng.choice(("GET", "PATCH", "BREW", "HEAD")),
            )
        elif path == "/v1/drain":
            path = "/v1/status"
        return self._framed(rng, method, path, sent)

    def _framed(self, rng: random.Random, method: str, path: str, sent: bytes) -> bytes:
        headers = ["Host: localhost", "Content-Type: application/json"]
        if rng.random() < 0.8:
            headers.append(self._token)
        if rng.random() < 0.3:
            headers += [rng.choice(HEADERS) for _ in range(rng.choice((1, 2, 100)))]
            rng.shuffle(headers)
        if rng.random() < 0.2:
            headers.append("Transfer-Encoding: chunked")
            size = rng.choice((1, 7, 5_000))
            cut = [sent[at : at + size] for at in range(0, len(sent), size)][:200]
            sent = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in cut) + b"0\r\n\r\n"
        elif sent or rng.random() < 0.1:
            wrong = rng.random() < 0.05
            headers.append(f"Content-Length: {rng.choice(NUMBERS) if wrong else len(sent)}")
        head = "\r\n".join((f"{method} {path} HTTP/1.1", *headers))
        return head.encode("utf-8", "surrogatepass") + b"\r\n\r\n" + sent


def send(address: tuple[str, int], rng: random.Random, data: bytes, left: list[socket.socket]) -> None:
    """Send as a client that reads, or hangs up, or neither."""
    one = socket.socket()
    one.settimeout(2.0)
    left.append(one)
    one.connect(address)
    for piece in pieces(rng, data):
        one.settimeout(0.05)
        if not quietly(lambda piece=piece: one.sendall(piece)):
            break
        if rng.random() < 0.3:
            one.settimeout(0.02)
            quietly(lambda: one.recv(1 << 16))
    what = rng.randrange(4)
    if what == 0:
        quietly(lambda: one.shutdown(socket.SHUT_WR))
    if what < 2 or len(left) > OPEN_MAX:
        left.pop(rng.randrange(len(left))).close()


def attack(rng: random.Random, calls: Calls) -> bytes:
    """The bytes of one client."""
    what = rng.randrange(10)
    if what == 0:
        return rng.randbytes(rng.choice((1, 100, 70_000)))
    whole = b"".join(calls.request(rng) for _ in range(rng.choice((1, 1, 1, 2, 20))))
    if what == 1:
        return whole[: rng.randrange(len(whole))]
    # A mutated path or method is hardly a drain: its letters would have to come by chance.
    return mutated(rng, whole) if what < 4 else whole


def still_answers(sidecar: Sidecar, hello: Any) -> None:
    """Health, the documents, and an assignment that becomes ready."""
    assert sidecar.http is not None

    def well() -> bool:
        assert sidecar.http is not None
        try:
            return sidecar.http.get("/livez").status_code == 200
        except OSError:
            return False
        except Exception as error:
            return "disconnected" not in str(error) and "reset" not in str(error)

    wait_for(well, 60, sidecar.told)
    assert sidecar.call("GET", "/v1/hello") == hello
    generation = sidecar.call("GET", "/v1/assignment").get("generation") or 0
    sidecar.assign(generation + 1, active=(0,), lease_ms=600_000)
    sidecar.wait_ready(2_000)
    assert sidecar.call("GET", "/v1/stores/kv/get?key=none&partition=0", status=404)["error"] == "NotFound"
    assert sidecar.call("GET", "/v1/status")["tasks"]


def answered(sidecar: Sidecar) -> dict[int, int]:
    """The number of replies by status."""
    assert sidecar.http is not None
    codes: dict[int, int] = {}
    for code, count in ANSWERED.findall(sidecar.http.get("/metrics").text):
        codes[int(code)] = codes.get(int(code), 0) + int(float(count))
    return codes


def test_http_server_bears_anything(sidecars: Sidecars, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f'[[tokens]]\nname = "ops"\nrole = "admin"\ntoken = "{TOKEN}"\n')
    tokens.chmod(0o600)
    sidecar = sidecars.start(
        auth__tokens_file=str(tokens), store__memory="32MiB", limits__wait_max="2s", serve__lease="60s"
    )
    assert sidecar.http is not None
    sidecar.http.headers["Authorization"] = f"Bearer {TOKEN}"
    sidecar.declare(FOUR)
    sidecar.assign(1, active=(0,), lease_ms=600_000)
    sidecar.wait_ready(2_000)
    hello = sidecar.call("GET", "/v1/hello")
    calls = Calls(sidecar.call("GET", "/v1/openapi.json"), TOKEN)
    assert len(calls.all) > 15
    split = urlsplit(sidecar.info["http"])
    assert split.hostname is not None and split.port is not None
    rng, left = seeded("http"), list[socket.socket]()
    watched = Watched(sidecar, "http", GROWTH_MIB)
    try:
        for number, one in enumerate(rounds(rng, "http")):
            if not quietly(lambda one=one: send((split.hostname, split.port), one, attack(one, calls), left)):
                time.sleep(0.01)
            if number % 200 == 199:
                watched.check()
    finally:  # sockets of a run that failed would fail the tests after it
        for one in left:
            one.close()
    still_answers(sidecar, hello)
    watched.end()
    codes = answered(sidecar)
    assert sidecar.http is not None
    print("fuzz http: answers by status:", dict(sorted(codes.items())))
    failed = [line for line in sidecar.http.get("/metrics").text.splitlines() if re.search(r'code="50[^3]', line)]
    assert failed == []
    assert {200, 400, 404, 405, 409} <= set(codes) or FUZZ_S < 10, "every kind of answer"
    assert sidecar.stop() == 0


def test_client_that_hangs_up_within_its_body_is_no_failure_of_the_server(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    split = urlsplit(sidecar.info["http"])
    with socket.create_connection((split.hostname, split.port)) as client:
        client.sendall(b"POST /v1/heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        wait_for(lambda: sidecar.call("GET", "/v1/status"), told=sidecar.told)
    wait_for(lambda: answered(sidecar).get(499) == 1, told=lambda: f"{answered(sidecar)}")
    assert 500 not in answered(sidecar)
