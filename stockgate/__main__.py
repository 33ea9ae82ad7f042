"""`python -m stockgate` is the command `stockgate`."""

from stockgate.cli import main

if __name__ == "__main__":
    main()
