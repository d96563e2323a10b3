"""sft.py and what only training needs."""
