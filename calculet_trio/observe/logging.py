"""Logging: one event name with fields a line, on standard error. Never prompts, tokens or keys.

Source: CONVENTIONS.md "Code" 11.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging(*, verbosity: int) -> None:
    """Send structlog, and the libraries that use `logging`, to standard error.

    Args:
        verbosity: 0 shows what an operator must know, 1 and more also what a developer wants to.
    """
    level = logging.DEBUG if verbosity else logging.INFO
    logging.basicConfig(level=logging.DEBUG if verbosity > 1 else logging.WARNING, stream=sys.stderr, force=True)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=True)
            if sys.stderr.isatty()
            else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
