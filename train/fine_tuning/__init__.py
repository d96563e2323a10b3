"""Supervised fine-tuning: the trainer, its validation, its logs and its failures."""
