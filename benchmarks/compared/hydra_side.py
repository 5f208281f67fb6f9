"""Hydra: python hydra_side.py --multirun x=0,1,2 row=sweep folder=F. Its jobs keep their results themselves."""

import json
from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore
from trial import square


@dataclass
class Config:
    x: int = 0
    row: str = "sweep"
    folder: str = "."


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def main(config):
    loss = square(config.x, config.row, config.folder)
    with open(f"{config.folder}/losses", "a", encoding="utf-8") as losses:
        losses.write(json.dumps(loss) + "\n")


if __name__ == "__main__":
    main()  # pyright: ignore[reportCallIssue]
