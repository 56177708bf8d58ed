"""The master's state machine of one job, and its parts. The names are in the modules: nothing is imported."""
