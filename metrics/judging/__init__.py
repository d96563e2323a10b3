"""Answer judges: BEM, language models, ROUGE and cover match."""
