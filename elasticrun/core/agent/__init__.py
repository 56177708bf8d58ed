"""The state machine of one node, and its parts. The names are in the modules: nothing is imported."""
