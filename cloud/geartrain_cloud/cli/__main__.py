"""`python -m geartrain_cloud.cli`: `gear` without its script, for where no PATH leads to it."""

import sys

from geartrain_cloud.cli import main

if __name__ == "__main__":
    sys.exit(main())
