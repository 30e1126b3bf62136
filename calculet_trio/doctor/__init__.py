"""Whether host, board and service are well: one small check a file, and what each saw, why it matters, what to do."""
