"""Official metrics and strict twins, retrieval and gate metrics, judges, intervals; scoring of prediction files."""
