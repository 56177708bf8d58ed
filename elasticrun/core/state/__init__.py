"""The saved state of a job: which commits exist, who holds their parts, and which one is restored."""
