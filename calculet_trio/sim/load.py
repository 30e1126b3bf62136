"""Load: how many requests a second a board can serve, by its device model.

Source: SPEC section 1.
"""

from __future__ import annotations

from math import exp

from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.sim.population import Poisson


def arrivals_per_s(device: DeviceModel, population: Poisson) -> float:
    """Requests of the population's mean lengths that the board can serve in a second, its largest batch full.

    An estimate: real batches are not always full, and prompts longer than the context are refused.
    """
    growth = exp(population.spread**2 / 2)  # of a log-normal's mean over its median
    prompt = min(population.prompt_median * growth, device.context_tokens / 2)
    output = min(population.output_median * growth, device.context_tokens / 2)
    batch = max(device.decode)
    step_s = device.decode[batch].seconds(active=batch, context_tokens=int(batch * (prompt + output / 2)))
    prefill_s = device.prefill.seconds(tokens=int(prompt), position=0)
    copies_s = device.h2d_s * (1 + output / batch) + device.d2h_row_s * (1 + output)
    return 1.0 / (prefill_s + output * step_s / batch + copies_s)
