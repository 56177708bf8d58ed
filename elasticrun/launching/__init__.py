"""Launch from Python: functions and scripts as distributed jobs, with what they returned."""
