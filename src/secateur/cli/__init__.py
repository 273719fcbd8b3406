"""The command line: `secateur COMMAND …`."""

from secateur.cli.application import main

__all__ = ["main"]
