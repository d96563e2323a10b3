"""What every other floor stands on: the types that travel between floors, configs, errors, durable files. Imports nothing of the project."""
