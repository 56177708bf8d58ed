"""Pure decisions: standard library only, no time, sockets, threads, logging, randomness or files."""
