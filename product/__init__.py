"""Will hold the product module: items, drafts and snapshots. Empty so far.

It will import `kernel`, `lua`, `sql` and `client`, and other siblings only through their `client.py`.
"""
