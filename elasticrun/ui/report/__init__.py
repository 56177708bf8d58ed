"""The report of a job as one page of HTML, and as a trace."""
