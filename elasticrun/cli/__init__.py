"""Command lines and the composition root: the only place that reads the environment."""
