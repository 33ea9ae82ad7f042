"""The small shared base: settings, clock, ids, errors, limits, names, driver doors, logs and metrics.

Imports nothing of ours.
"""
