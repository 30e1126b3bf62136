"""The machine under the service: memory, and the account that it runs as."""
