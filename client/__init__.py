"""The typed async client of the HTTP contract; `stockgate_client` when it is installed alone.

Imports nothing of ours.
"""
