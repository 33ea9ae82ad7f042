"""The protocol as a small pure model, with Redis deciding and with MySQL, and a search through everything it can do."""
