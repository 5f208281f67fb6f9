"""What the gradients of a sweep say about its parameters, and what the sweep says about its gradients."""
