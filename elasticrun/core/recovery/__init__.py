"""What went wrong in a round, what it costs, and what follows."""
