"""Saves the state of a training in memory that outlives the worker, and restores it after a restart."""
