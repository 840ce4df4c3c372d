"""`python -m fieldwise` runs the command `fieldwise`."""

from fieldwise.cli import main

if __name__ == "__main__":
    main()
