"""Lessons of trajectories: what an iterative pipeline asks, with the replies of a teacher who knows the evidence."""
