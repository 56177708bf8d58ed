"""What was the matter with a round, what it costs, and what follows."""
