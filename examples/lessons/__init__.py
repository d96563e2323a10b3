"""Lessons of trajectories: prompts of an iterative pipeline, with replies of a teacher who knows the evidence."""
