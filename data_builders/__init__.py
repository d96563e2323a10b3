"""Builders of questions, knowledge bases and reflection data."""
