"""`python -m jax_plugins.arena`, the former name of ``pjrt-arena doctor``."""

from __future__ import annotations

import sys
import warnings

from pjrt_arena import cli


def main(arguments: list[str]) -> int:
    """What the command does, after a warning."""
    warnings.warn("python -m jax_plugins.arena is now: pjrt-arena doctor", DeprecationWarning, stacklevel=2)
    # `--library` and `--version` are options of the command itself.
    own = {"--library", "--version"} & {*arguments}
    return cli.main(arguments if own else ["doctor", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
