"""Optional mirrors of the metrics: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from benchmarks.config import RunConfig
from benchmarks.store import Run
from benchmarks.suggest import unknown

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

LOGGERS = ("none", "tensorboard", "wandb", "mlflow")


def require(name: str) -> None:
    """Make sure that a logger can be used, before anything is run.

    Raises:
        ValueError: unknown logger, or its package is not installed.
    """
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    if name != "none" and importlib.util.find_spec(name) is None:
        raise ValueError(
            f"logger={name} needs the package {name}, which is not installed; "
            "`make setup EXTRAS=dev,stats,slurm,logging` brings it"
        )


def build_loggers(cfg: RunConfig, run: Run, phase: str) -> list[Logger]:
    """The Lightning loggers that `logger=` asks for.

    Raises:
        ValueError: see :func:`require`.
    """
    name = cfg.logger.name
    require(name)
    if name == "none":
        return []
    label = f"{cfg.dataset.name}-{cfg.attention.name}-{run.key.hash}-seed{cfg.seed}-{phase}"
    if name == "tensorboard":
        from lightning.pytorch.loggers import TensorBoardLogger

        return [TensorBoardLogger(run.path, name="tensorboard", version=phase)]
    if name == "wandb":
        from lightning.pytorch.loggers import WandbLogger

        return [
            WandbLogger(
                name=label, id=label, project=cfg.logger.project, save_dir=run.path, resume="allow"
            )
        ]
    from lightning.pytorch.loggers import MLFlowLogger

    # MLflow's file store is gone; a SQLite file beside the runs needs no server.
    uri = cfg.logger.tracking_uri or f"sqlite:///{run.path.parents[4]}/mlflow.db"
    return [MLFlowLogger(experiment_name=cfg.domain, run_name=label, tracking_uri=uri)]
