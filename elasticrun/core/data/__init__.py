"""The order of the samples, what was taken of them, and the proof that each counted once."""
