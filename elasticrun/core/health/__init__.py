"""Which nodes are fit to work: the plan of a check, its verdicts, and the candidates for a world."""
