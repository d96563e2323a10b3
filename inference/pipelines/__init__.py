"""One pipeline a file: closed book, naive RAG, oracle, mR²AG; and two stages that only measure."""
