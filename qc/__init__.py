"""Will hold the quality control module: reviews of what is supplied. Empty so far.

It will import `kernel`, `lua`, `sql` and `client`, and other siblings only through their `client.py`.
"""
