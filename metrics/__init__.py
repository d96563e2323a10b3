"""Official metrics, retrieval metrics, gate metrics, intervals. Pure functions."""
