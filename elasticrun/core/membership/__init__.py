"""The nodes of the job, and which of them may form a world."""
