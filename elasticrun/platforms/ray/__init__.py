"""Runs the nodes of a job on a Ray cluster: ``elastic-run --platform ray`` inside a driver."""
