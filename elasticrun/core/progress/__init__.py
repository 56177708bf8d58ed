"""Whether the workers of a node make steps, and whether they still could."""
