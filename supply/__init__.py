"""Will hold the supply module: product supply tasks and supplier synchronisation. Empty so far.

It will import `kernel`, `lua`, `sql` and `client`, and other siblings only through their `client.py`.
"""
