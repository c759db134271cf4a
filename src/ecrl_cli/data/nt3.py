"""The gene expression profiles of CANDLE's NT3 benchmark: a CSV file per split, the label first, no
header.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data import preflight
from ecrl_cli.data.preflight import NT3_FILES
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo, SampleSet
from ecrl_cli.errors import DatasetError

CLASSES = 2


class NT3WithIDs(ArraySet):
    """A sample is one profile, shape (1, 1, features); each gene is divided by its largest absolute
    value in both files, as in the benchmark.
    """

    def __init__(self, config: DatasetConfig, split: str = "train") -> None:
        preflight.check(config)
        labels, profiles = zip(*(_read(config, name) for name in NT3_FILES.values()), strict=True)
        if len({each.shape[1] for each in profiles}) > 1:
            raise _damaged(
                config,
                f"the files hold {' and '.join(str(each.shape[1]) for each in profiles)} features",
            )
        peaks = np.maximum(*(np.abs(each).max(axis=0) for each in profiles))
        index = list(NT3_FILES).index(split)
        scaled = profiles[index] / np.where(peaks > 0, peaks, np.float32(1))
        traits = DatasetInfo(
            "nt3", CLASSES, (1, 1, scaled.shape[1]), mean=(0.0,), std=(1.0,), peak=1, flip=False
        )
        super().__init__(traits, scaled.reshape(-1, 1, 1, scaled.shape[1]), labels[index])
        self._config, self._split = config, split

    def held_out(self) -> SampleSet | None:
        return NT3WithIDs(self._config, "test") if self._split == "train" else None


def _read(
    config: DatasetConfig, name: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    path = preflight.home(config) / name
    try:
        table = pd.read_csv(path, header=None, dtype=np.float32).to_numpy()
    except (ValueError, OSError) as error:
        raise _damaged(
            config, f"{name} cannot be read ({type(error).__name__}: {error})"
        ) from error
    if table.shape[1] < 2 or not np.isfinite(table).all():
        raise _damaged(config, f"{name} lacks numbers")
    labels = table[:, 0].astype(np.int64)
    if not np.array_equal(labels, table[:, 0]) or labels.min() < 0 or labels.max() >= CLASSES:
        raise _damaged(config, f"{name}: the first column is not 0 or 1")
    return labels, np.ascontiguousarray(table[:, 1:])


def _damaged(config: DatasetConfig, fact: str) -> DatasetError:
    return DatasetError("dataset.root", f"{preflight.home(config)}: {fact}", "restore the files")
