"""Events over HTTP: readings of a stream of JSON lines, and out the highest of each sensor.

    python examples/http_events.py                          serves a stream itself and reads it; Ctrl-C ends it
    python examples/http_events.py ./http-events HOST:PORT  reads another one

All files are in ./http-events, or in the folder named on the command line. Each event has a number; a reader that comes
back asks for those after the committed one: none is missed, and none counts twice.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from http import client, server

import standfast as sf


class Events(sf.Source):
    """The events of a server; asks for those after the last one whenever the stream ends."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket: socket.socket | None = None

    def run(self, context: sf.SourceContext) -> None:
        while not context.cancelled:
            try:
                connection = client.HTTPConnection(self.address)
                connection.request("GET", f"/events?after={context.position}")
                self.socket = connection.sock
                for line in connection.getresponse():
                    event = json.loads(line)
                    context.collect(sf.Record(event["sensor"], event["value"], event["at"]), event["number"])
            except OSError as error:
                print(f"asking again: {error}", file=sys.stderr)
            context.wait(0.5)

    def cancel(self) -> None:
        if self.socket is not None and self.socket.fileno() >= 0:
            self.socket.shutdown(socket.SHUT_RDWR)  # ends a wait for the next event


def build(address: str, log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    highest = sf.KeyValueStore("highest", sf.serde.string, sf.serde.int64)
    app = sf.App("http-events", log=log, state_dir=state_dir, stores=[highest], create_topics=True)
    events = app.stream(Events(address), name="events", value=sf.serde.int64)
    events.group_by_key().reduce(max, "highest").peek(print).to("highest-readings")
    return app


class Readings(server.BaseHTTPRequestHandler):
    """A stream to try it with: a hundred readings of three sensors."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for number in range(int(self.path.partition("=")[2]) + 1, 101):
            event = {"number": number, "sensor": f"s{number % 3}", "value": number * 7 % 50, "at": number * 1_000}
            self.wfile.write(json.dumps(event).encode() + b"\n")

    def log_message(self, format: str, *args: object) -> None:
        """No line for each request."""


def main(folder: str = "http-events", address: str = "") -> None:
    """Read until the process ends."""
    if not address:
        own = server.ThreadingHTTPServer(("127.0.0.1", 0), Readings)
        threading.Thread(target=own.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{own.server_port}"
    build(address, f"sqlite:///{folder}/log", f"{folder}/state").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
