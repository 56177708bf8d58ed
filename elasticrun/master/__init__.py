"""The process that owns membership and rounds: it feeds events to core and carries out the effects."""
