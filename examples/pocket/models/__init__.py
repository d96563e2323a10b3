"""pocket: a LLaVA of small published parts, fetched from the Hub or from packages."""
