"""The whole system in processes of its own: crashes, pauses and restarts, judged from the callers' history."""
