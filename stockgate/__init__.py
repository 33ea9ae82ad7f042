"""The command line and the development stack: private servers, all roles, one supervisor.

May import everything; nothing imports it.
"""
