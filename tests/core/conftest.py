"""Hypothesis profiles: the same examples every time under CI, fresh ones (and a memory of failures) at a desk."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "desk",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    report_multiple_bugs=False,  # one failure, shrunk and readable, is worth more than six
)
settings.register_profile("ci", parent=settings.get_profile("desk"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
