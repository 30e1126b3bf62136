"""The admin socket: what operators may do to a running daemon, one at a time, and all of it on record."""
