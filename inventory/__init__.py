"""The domain: moves, outcomes, events, the batcher, the deciders, the leader, plan and ledger.

Imports `lua`, `sql` and `kernel`.
"""
