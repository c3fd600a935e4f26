"""Enrichment: each order gets the name of its customer, which an HTTP service knows.

    pip install httpx
    python examples/enrichment.py        feeds six orders and prints them with names; Ctrl-C ends it

The service is $CUSTOMERS_URL (GET /<customer>: JSON with a name, or 404), by default one for trying. Up to 32 requests
of a task run at once; its orders stay in order, and none is committed before its answer. A request that fails is tried
again; after the fourth time its order goes to the topic orders-failed. All files are in ./enrichment.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

import standfast as sf


class WithName(sf.Processor):
    """Asks for the customer of each order; one HTTP client a task."""

    calls = sf.Calls(parallel=32, timeout_ms=2_000, retries=4, backoff_ms=50, retry_on=httpx.HTTPError)

    async def init(self, context: sf.Context) -> None:
        self.context = context
        self.client = httpx.AsyncClient(base_url=os.environ["CUSTOMERS_URL"])

    async def process(self, record: sf.Record) -> None:
        answer = await self.client.get(f"/{record.value['customer']}")
        name = None if answer.status_code == 404 else answer.raise_for_status().json()["name"]
        self.context.forward(record._replace(value={**record.value, "name": name}))

    async def close(self) -> None:
        await self.client.aclose()


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    app = sf.App("enrichment", log=log, state_dir=state_dir, create_topics=True)
    named = app.stream("orders").process(
        WithName, name="customers", on_error="dead_letter", dead_letter="orders-failed"
    )
    named.peek(lambda order, value: print(f"{order}: {value}")).to("orders-named")
    return app


def serve(folder: Path) -> str:
    """A service for trying, whose answers are files; returns its address."""
    folder.mkdir(parents=True, exist_ok=True)
    for customer, name in (("7", "Ann"), ("8", "Bob")):
        (folder / customer).write_text(f'{{"name": "{name}"}}')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def main(folder: str = "enrichment") -> None:
    """Feed the orders, and print them until the process ends."""
    os.environ.setdefault("CUSTOMERS_URL", serve(Path(folder, "customers")))
    app = build(f"sqlite:///{folder}/log", f"{folder}/state")
    with app.producer() as producer:
        for number, customer in enumerate("787897"):
            producer.send("orders", f"order {number}", {"customer": customer})
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
