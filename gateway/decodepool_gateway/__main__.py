"""`python -m decodepool_gateway`."""

from __future__ import annotations

import sys

from decodepool_gateway.command import main

if __name__ == "__main__":
    sys.exit(main())
