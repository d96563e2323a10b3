"""LLaVA-1.5 joined from its parts, as it is before instruction tuning."""
