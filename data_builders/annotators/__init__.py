"""Annotators that label passages as evidence for a question and name the answer: `string`, `gold` and `llm`."""
