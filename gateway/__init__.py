"""The HTTP process: routes, reservations, inventory, operator endpoints, health and metrics.

Imports `inventory` and below; reaches MySQL only through `inventory`.
"""
