"""Image and text encoders: loading checkpoints, and encoding."""
