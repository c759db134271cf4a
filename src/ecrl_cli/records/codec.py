"""Moved to config.codec."""

from ecrl_cli.config.codec import decode, encode

__all__ = ["decode", "encode"]
