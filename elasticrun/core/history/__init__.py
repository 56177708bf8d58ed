"""What happened in a job, put together from its event log."""
