"""What building data and evaluating pipelines take, before either is begun."""
