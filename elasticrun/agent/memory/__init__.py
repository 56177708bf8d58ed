"""The memory in which an agent keeps its workers' saved states, and the socket by which they reach it."""
