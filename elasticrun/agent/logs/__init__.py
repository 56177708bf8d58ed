"""What workers print: where it goes, and how it looks."""
