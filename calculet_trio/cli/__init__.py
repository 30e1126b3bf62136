"""The command line, and the one place that chooses a runtime (`wiring`)."""
