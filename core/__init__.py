"""Types, configs, errors and durable files. Imports nothing of the other folders."""
