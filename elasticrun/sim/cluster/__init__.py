"""Many jobs on one cluster, replayed with several schedulers."""
