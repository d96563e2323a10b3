"""Miniature LLaVA, Qwen2-VL and CLIP of the real transformers classes: base weights and pre-training."""
