"""Reflection data in other tools' layouts: TRL, LLaMA-Factory, ms-swift, LLaVA."""
