"""Miniature LLaVA, Qwen2-VL and CLIP of the real transformers classes, their base weights and how they were made."""
