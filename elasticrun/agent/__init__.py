"""One process per node: it supervises workers and carries out what core decides."""
