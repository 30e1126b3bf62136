"""The running service, asked from outside."""
