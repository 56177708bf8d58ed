"""Adapters to what runs beside a job: hosts that are reached by ssh, allocations of batch systems."""
