"""Which nodes are fit to work: the plan of a check, its verdicts, and who is a candidate for a world."""
