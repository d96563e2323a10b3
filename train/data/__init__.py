"""Training examples: mixtures, encoding, batches, their order, and how many questions a step has."""
