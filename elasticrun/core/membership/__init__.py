"""Who is in the job, and with whom a world may form."""
