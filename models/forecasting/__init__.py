"""What a model computes for a task, counted from its shapes, and how long that takes by a rate, given or measured."""
