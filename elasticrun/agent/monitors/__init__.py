"""What is seen of workers and of this host while they run."""
