"""The process that compares Redis with MySQL, moves Redis toward MySQL, audits and repairs.

Imports `inventory` and below.
"""
