"""ECRL: trains with PyTorch DDP under planned failures and proves or refutes that recovery was
exact.
"""

__version__ = "0.2.0"
