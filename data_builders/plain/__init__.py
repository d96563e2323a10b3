"""Training data of the baselines: the questions of mR²AG-IT with the contexts of naive RAG."""
