"""The simulator: the production core and shell in virtual time, against an emulated board with faults."""
