"""Calls of the compiled clients: their errors, and their complaints and log lines.

    errors    the compiled client's error ──> that of confluent_kafka, so that all other files know one kind
    hear      a complaint or a log line ──> the log's callbacks, the logger

Rules of this file: it translates and decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from standfast.replication.kafka.callbacks import Callbacks
from standfast.replication.kafka.errors import client_errors
from standfast.store.log import as_event, logger

_COMPLAINT = 1
_LEVELS = (*(logging.CRITICAL,) * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)


@contextmanager
def errors(module: Any) -> Iterator[None]:
    """The block's errors of the compiled client become KafkaException, with librdkafka's three flags."""
    try:
        with client_errors():
            yield
    except module.Error as error:
        raise KafkaException(KafkaError(*error.args)) from error


def hear(callbacks: Callbacks, kind: int, code: int, *texts: str) -> None:
    """Pass on one thing that a compiled client said: (1, code, text) or (2, level, facility, text)."""
    if kind == _COMPLAINT:
        callbacks.report(KafkaError(code, texts[0]))
    else:
        level = _LEVELS[min(code, len(_LEVELS) - 1)]
        logger.log(level, "%s [standfast] %s", *texts, extra=as_event("kafka_client_line"))
