"""What the service is told: where it keeps things, and where it listens."""
