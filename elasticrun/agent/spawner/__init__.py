"""The process between agent and workers, and the warm parents below it."""
