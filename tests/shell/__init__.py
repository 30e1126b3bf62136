"""The shell, over the scripted runtime."""
