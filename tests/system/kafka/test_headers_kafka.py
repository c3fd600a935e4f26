"""Headers of records through an application and its dead letters, on a real broker."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from support.headers import check_headers

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]


def test_headers_pass_through_an_application_and_its_dead_letters_on_kafka(kafka_address: str, tmp_path: Path) -> None:
    check_headers(f"kafka://{kafka_address}", tmp_path, f"h{uuid.uuid4().hex[:8]}-")
