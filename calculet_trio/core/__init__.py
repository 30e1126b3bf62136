"""The pure core: every decision of the service, and nothing that waits, measures or computes.

``ServingCore.handle(event, now) -> list[Effect]`` and ``next_wakeup()`` are its whole surface. It imports
attrs and the standard library's data parts only; time arrives as an argument.
"""
