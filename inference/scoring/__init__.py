"""From traces to metrics: scores, gates, rankings, and what must be said of them."""
