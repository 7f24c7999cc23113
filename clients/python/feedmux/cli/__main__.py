"""`python -m feedmux.cli`: the same as the script `feedmux`."""

import sys

from feedmux.cli import main

if __name__ == "__main__":
    sys.exit(main())
