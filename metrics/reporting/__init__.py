"""Tables, intervals and breakdowns of scores."""
