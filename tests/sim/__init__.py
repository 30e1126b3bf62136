"""Tests of the simulator: that it is the same run again, that its checkers fire, and that its worlds pass."""
