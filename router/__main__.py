"""`python -m router` and `scenario-router`: hands over to the commands."""

from __future__ import annotations

import sys

from router.commands import run


def main() -> int:
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
