"""Hosting the master as a process of this host, or finding it elsewhere."""
