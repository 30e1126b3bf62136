"""The model packages of this machine."""
