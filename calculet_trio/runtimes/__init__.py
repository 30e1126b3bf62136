"""Runtimes: what computes. One blocking Protocol (`port`), several implementations, one contract suite."""
