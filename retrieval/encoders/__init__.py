"""Image and text encoders: the catalogue of known checkpoints, how they are loaded, and what they make of inputs."""
