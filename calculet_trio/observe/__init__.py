"""Observation: metrics, logs, traces. Never prompts, tokens or keys."""
