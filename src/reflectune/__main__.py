"""Run a command: `python -m reflectune COMMAND …`."""

from reflectune.cli import main

main()
