"""How much: goodput, the account of every checkpoint, statistics, the quality gates."""
