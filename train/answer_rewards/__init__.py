"""Training a checkpoint's answers by TRL's GRPO."""
