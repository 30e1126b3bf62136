"""The service socket: OpenAI-compatible HTTP/SSE over a hardened hypercorn."""
