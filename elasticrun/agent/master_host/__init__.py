"""The master as one of this host's processes, or where else it is."""
