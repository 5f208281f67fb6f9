"""The same sweep with qdrun, Ray Tune, Optuna, Hydra, submitit and wandb: what is left of it when something goes wrong."""
