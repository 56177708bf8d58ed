"""What people look at: pure functions from values to text, with rich, imported only where it is shown."""
