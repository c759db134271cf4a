"""Makes the configured strategy."""

from __future__ import annotations

from ecrl_cli.checkpoint.strategies.context import StrategyInputs
from ecrl_cli.checkpoint.strategies.strategy import Strategy
from ecrl_cli.config.strategies import strategy_of


def make_strategy(inputs: StrategyInputs) -> Strategy:
    """The strategy named by `inputs.config.checkpoint`, for this rank in this attempt."""
    made: Strategy = strategy_of(inputs.config).load().make(inputs)
    return made
