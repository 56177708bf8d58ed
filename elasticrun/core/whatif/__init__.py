"""What a job would have lost under other circumstances."""
