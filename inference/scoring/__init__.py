"""From traces to metrics: scores, gates, rankings, curves, and what must be said of them."""
