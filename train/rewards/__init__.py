"""Training by reward: the gates of a checkpoint, and its answers by GRPO."""
