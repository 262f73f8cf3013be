"""Optional mirrors of the metrics: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.config import RunConfig
from benchmarks.store import Run
from benchmarks.suggest import unknown

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

LOGGERS = ("none", "tensorboard", "wandb", "mlflow")


def build_loggers(cfg: RunConfig, run: Run, phase: str) -> list[Logger]:
    """The Lightning loggers that `logger=` asks for.

    Raises:
        ValueError: unknown logger.
        ModuleNotFoundError: its package is not installed (extra `logging`).
    """
    name = cfg.logger.name
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
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
