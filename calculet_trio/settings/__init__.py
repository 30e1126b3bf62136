"""Configuration: YAML files, strictly read, become the core's frozen policy and the daemon's own settings."""
