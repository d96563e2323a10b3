"""Gates refined by the reward of what follows from them: rewards, the exact policy loss, the trainer, the run."""
