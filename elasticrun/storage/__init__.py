"""Commits on a disk or in an object store: writing files, finding commits, checking and removing them."""
