"""What people look at: Grafana's dashboards, Prometheus' alert rules, and what draws the former from a running system.

Black box: it knows metrics by their names only. `README.md` says how to use the files.
"""
