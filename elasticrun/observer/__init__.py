"""The observer: a process beside a job that shows it to any number of browsers."""
