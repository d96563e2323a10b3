"""Training by reward: gates and answers with GRPO."""
