"""Estimates of a run's memory, and the settings to change where it doesn't fit."""
