"""Log lines, as a service manager keeps them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from calculet_trio.observe.logging import configure_logging


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_every_field_has_a_name_and_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(verbosity=0)
    structlog.get_logger().info("signal", name="SIGINT", again=True, before=False)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(" level=info event=signal name=SIGINT again=true before=false")
