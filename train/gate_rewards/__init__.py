"""Training a checkpoint's gates by the rewards of their two outcomes."""
