"""`python -m geartrain_client.cli`: runs `gear` where its script is not on the PATH."""

import sys

from geartrain_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
