"""What agents, master and operators say to one another, as values with their limits."""
