"""The page, as `python app.py` and as a Space: `specdemo serve` with nothing chosen."""

import sys

from specdemo.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
