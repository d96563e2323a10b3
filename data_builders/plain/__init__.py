"""The baselines' training data: the questions of mR²AG-IT, to be answered from what naive RAG reads."""
