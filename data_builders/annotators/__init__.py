"""Annotators: is a passage evidence for a question, and which answer does it give? `string`, `gold` and `llm`."""
