"""The NPU board: on the bus, with its driver, and reachable by the service alone."""
