"""Image and text encoders: a catalogue of known checkpoints, loading, and encoding."""
