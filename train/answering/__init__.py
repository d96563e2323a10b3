"""Reinforcement of answers by TRL's GRPO: prompts that are rendered here, rewards by the official metrics."""
