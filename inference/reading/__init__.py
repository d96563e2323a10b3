"""Models behind readers: what a pipeline asks of a model, in its words."""
