"""The timeouts of what is to be served: the configuration's, the model's, the driver's and the service manager's.

Source: SPEC section 9.
"""

from __future__ import annotations

from calculet_trio.cli.service_manager import stop_timeout_s
from calculet_trio.core.profiles import ModelShape
from calculet_trio.settings.service import RuntimeKind, ServiceSettings
from calculet_trio.settings.surface import TimeoutSettings
from calculet_trio.settings.timeout_order import TimeoutOrder
from calculet_trio.shell.executor import JobTimeout


def job_timeout(settings: TimeoutSettings) -> JobTimeout:
    """The bound of a device job, as configured."""
    return JobTimeout(base_s=settings.job_s, per_token_s=settings.job_per_token_ms / 1000)


def timeout_order(settings: TimeoutSettings, shape: ModelShape | None) -> TimeoutOrder:
    """The order for a model of that shape; for jobs of one token where it is not known."""
    job = job_timeout(settings)
    longest_s = job.base_s + job.overrun_s if shape is None else job.longest_s(shape)
    return TimeoutOrder(settings=settings, longest_job_s=longest_s)


def checked_order(service: ServiceSettings, shape: ModelShape | None) -> TimeoutOrder:
    """The order as it holds for this process; asks the driver and the service manager, and so blocks.

    Raises:
        calculet_trio.errors.ConfigurationRefused: two timeouts are in the wrong order; both are named.
    """
    order = timeout_order(service.timeouts, shape)
    found = TimeoutOrder(
        settings=order.settings,
        longest_job_s=order.longest_job_s,
        dma_s=_dma_s() if service.device.runtime is RuntimeKind.CALRT else None,
        stop_s=stop_timeout_s(),
    )
    found.refuse_disorder()
    return found


def _dma_s() -> float | None:
    from calculet_trio.doctor.board.dma_timeout import dma_timeout_s  # of a board alone
    from calculet_trio.doctor.host_tree import HostTree

    return dma_timeout_s(HostTree())
