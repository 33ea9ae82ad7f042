"""Load scenarios, benchmarks and budgets. The system is a black box here: only `client` is imported."""
