"""`python -m decodepool_cli`: the command line, for where the script is not on the path."""

import sys

from decodepool_cli.main import main

sys.exit(main())
