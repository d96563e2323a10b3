"""Annotators that label passages as evidence for a question: `string`, `gold` and `llm`; and a page to proofread."""
