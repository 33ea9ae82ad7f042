"""The hot-path protocol as a small pure model, and a search through everything it can do."""
