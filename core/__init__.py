"""What every floor stands on: types, configs, errors, durable files. Imports nothing of the project."""
