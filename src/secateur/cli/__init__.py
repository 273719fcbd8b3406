"""The command line: `secateur COMMAND …`."""

from secateur.cli.app import main

__all__ = ["main"]
