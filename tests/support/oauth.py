"""A real broker that takes logins by SASL/OAUTHBEARER, and tokens for it: unsecured JSON Web Tokens, which it accepts.

Rules of this file: no fixtures, so tests import the parts they use. The tokens prove nothing: for tests alone.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from standfast.ops.shared.loopback import HOST, free_port
from support.kafka import light_broker

LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SETTINGS = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f'{LOGIN} unsecuredLoginStringClaim_sub="broker";',
}


class Tokens:
    """An `oauth_cb` whose tokens last for `life_s`. `broken`: it raises this instead. Counts its calls."""

    def __init__(self, life_s: float = 3_600) -> None:
        self.life_s = life_s
        self.broken: Exception | None = None
        self.calls = 0

    def __call__(self, config: str) -> tuple[str, float]:
        self.calls += 1
        if self.broken is not None:
            raise self.broken
        return unsecured_jwt("ada", self.life_s)


def unsecured_jwt(subject: str, life_s: float) -> tuple[str, float]:
    """The token and its expiry, in seconds since the epoch."""
    now_s = time.time()
    claims = {"sub": subject, "iat": now_s - 1, "exp": now_s + life_s}
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", now_s + life_s


def settings(tokens: Any, **more: Any) -> dict[str, Any]:
    """`kafka=` of a program that logs in by these tokens."""
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens, **more}


@contextmanager
def oauth_broker(root: Path) -> Iterator[str]:
    """The address of a broker that runs until the end of the block; it needs a login."""
    port = free_port()
    own = f"PLAINTEXT://{HOST}:{{port}},CONTROLLER://{HOST}:{{controller_port}}"
    listeners = {"listeners": f"{own},SASL_PLAINTEXT://{HOST}:{port}"}
    with light_broker(root / "kafka", SETTINGS | listeners):
        yield f"kafka://{HOST}:{port}?timeout.ms=8000"


def _part(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
