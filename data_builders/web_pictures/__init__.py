"""Pictures that a knowledge base names by their addresses: a manifest of them, and fetching them politely."""
