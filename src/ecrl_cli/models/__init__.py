"""Models by name: a builder takes (ModelConfig, classes, input shape) and returns a module."""

from ecrl_cli.models.registry import REGISTRY, build

__all__ = ["REGISTRY", "build"]
