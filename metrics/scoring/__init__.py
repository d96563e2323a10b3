"""Prediction files, from reading to scores."""
