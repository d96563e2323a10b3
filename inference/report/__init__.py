"""Pages as one HTML file or Markdown: an evaluation's tables, charts and traces, and a comparison of evaluations."""
