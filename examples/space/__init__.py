"""A Hugging Face Space."""
