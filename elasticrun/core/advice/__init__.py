"""What holds a job back, and what to do about it."""
