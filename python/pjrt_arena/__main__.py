"""`python -m pjrt_arena` is the command `pjrt-arena`."""

from __future__ import annotations

import sys

from pjrt_arena import cli

if __name__ == "__main__":
    sys.exit(cli.main())
