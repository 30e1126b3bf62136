"""How the process ends: report B65, and whatever else a SIGTERM may meet."""
