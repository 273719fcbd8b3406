"""`python -m secateur`, for where the command itself is not on the path."""

from secateur.cli import main

if __name__ == "__main__":
    main()
