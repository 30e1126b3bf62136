"""Real clients against the real process."""
