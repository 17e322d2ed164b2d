"""``python -m bireme`` is ``bireme``."""

from bireme.cli import main

if __name__ == "__main__":
    main()
