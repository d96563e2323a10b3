"""pocket: a real LLaVA of small parts, fetched from the Hub or from ordinary packages."""
