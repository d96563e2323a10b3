"""Run pipelines over questions: an evaluation, a single question, rollouts for rewards, recall."""
