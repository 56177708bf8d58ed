"""Observing the workers, and this host, while they run."""
