"""wandb sweeps: what they need."""

import os

os.environ["WANDB_MODE"] = "offline"
import wandb

if __name__ == "__main__":
    wandb.sweep({"method": "grid", "parameters": {"x": {"values": list(range(24))}}}, project="compared")
