"""`qd.ad.checkpointed_steps`: the gradient of time steps on arrays that hold a window of them."""
