"""A process of its own that shows a job: web page, metrics, traces."""
