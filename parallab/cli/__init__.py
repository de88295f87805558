"""The lab's verbs in a terminal: `parallab run --model micro --strategy zero3`.

`main` parses and dispatches, `arguments` turns flags into a Model and a Plan, and each verb has a
file. What a person reads goes to standard output, what happens meanwhile to standard error.
"""

from parallab.cli.main import main

__all__ = ["main"]
