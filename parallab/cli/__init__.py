"""The lab's verbs in a terminal: `parallab run --model micro --strategy zero3`.

`main` parses and dispatches, `arguments` turns flags into a Model and a Plan, and each verb has a
file. What a person reads goes to standard output, what happens meanwhile to standard error.
"""

import sys

try:
    from parallab.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while the modules are being loaded
    sys.exit(130)

__all__ = ["main"]
