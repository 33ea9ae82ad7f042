"""The Redis scripts, one operation to a file, and the loader that hands them out.

Imports only `kernel`.
"""
