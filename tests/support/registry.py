"""A schema registry over HTTP: the part of its interface that serializers use, with answers that a test can spoil.

    with SchemaRegistry() as registry: serde.avro(SCHEMA, registry=registry.url)
    registry.fail = 503           every answer has this status        registry.hang = True      no answer at all
    registry.page = True          answers are no registry's           registry.frozen.add(s)    no other schema fits s
    registry.stop(), start()      nothing listens; the same port again, with the schemas that it had

Rules of this file: ids grow from 1 in the order of registration; one schema has one id, whatever its subjects. Listens
on loopback only.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

HOST = "127.0.0.1"


class SchemaRegistry:
    """The registry; `requests` are all that came, as "GET /schemas/ids/1"."""

    def __init__(self, login: str | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.frozen: set[str] = set()
        self.fail: int | None = None
        self.hang = False
        self.page = False
        self._login = login
        self._release = threading.Event()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry._serve(self, None)

            def do_POST(self) -> None:
                registry._serve(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._release.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self._release = threading.Event()

    def __enter__(self) -> SchemaRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def asked(self, start: str) -> int:
        """The number of requests that begin so."""
        return sum(one.startswith(start) for one in self.requests)

    def _serve(self, call: BaseHTTPRequestHandler, body: Any) -> None:
        path = urlsplit(call.path).path
        self.requests.append(f"{call.command} {path}")
        if self.hang:
            self._release.wait(60)
            return
        given = call.headers.get("Authorization", "")
        if self.page:
            self._answer(call, 200, "<html>a page of another server</html>")
        elif self._login is not None and given != "Basic " + base64.b64encode(self._login.encode()).decode():
            self._answer(call, 401, {"error_code": 401, "message": "Unauthorized"})
        elif self.fail is not None:
            self._answer(call, self.fail, {"error_code": self.fail * 100, "message": "on purpose"})
        else:
            self._answer(call, *self._respond(call.command, [unquote(one) for one in path.strip("/").split("/")], body))

    def _respond(self, method: str, path: list[str], body: Any) -> tuple[int, Any]:
        match method, *path:
            case "GET", "schemas", "ids", number:
                found = self.schemas.get(int(number))
                return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
            case "POST", "subjects", subject, "versions":
                return self._register(subject, body)
            case "POST", "subjects", subject:
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                ids = [one for one in self.subjects[subject] if self.schemas[one] == _plain(body)]
                return self._version(subject, ids[0]) if ids else (404, {"error_code": 40403, "message": "Not found"})
            case "GET", "subjects", subject, "versions", "latest":
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                return self._version(subject, self.subjects[subject][-1])
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: Any) -> tuple[int, Any]:
        schema = _plain(body)
        number = next((one for one, there in self.schemas.items() if there == schema), None)
        if number is None or number not in self.subjects.get(subject, []):
            if subject in self.frozen:
                return 409, {"error_code": 409, "message": f"incompatible with an earlier schema of '{subject}'"}
            number = number or len(self.schemas) + 1
            self.schemas[number] = schema
            self.subjects.setdefault(subject, []).append(number)
        return 200, {"id": number}

    def _version(self, subject: str, number: int) -> tuple[int, Any]:
        version = self.subjects[subject].index(number) + 1
        return 200, {"subject": subject, "id": number, "version": version, **self.schemas[number]}

    @staticmethod
    def _answer(call: BaseHTTPRequestHandler, status: int, answer: Any) -> None:
        raw = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        call.send_response(status)
        call.send_header("Content-Length", str(len(raw)))
        call.end_headers()
        call.wfile.write(raw)


def _plain(body: Any) -> dict[str, Any]:
    return {name: body[name] for name in ("schema", "schemaType") if name in body and body[name] != "AVRO"}
