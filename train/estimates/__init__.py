"""Estimates of a run's memory."""
