"""The simulator: one master, N agents and a network as data, under faults, on a clock that jumps."""
