"""calculet-trio: the serving daemon for NPU boards that run whole-graph precompiled LLMs."""

__version__ = "0.1.0"
