"""`python -m parallab` is `parallab`."""

import sys

from parallab.cli import main

sys.exit(main())
