"""The SQL statements and migrations, one statement to a file, and their loader.

Imports only `kernel`.
"""
