"""Public bug reports of servers like ours, as tests of the real process over a real socket."""
