"""From a config to a trained model: loss, optimiser, schedule, evaluation, checkpoints, and the loop that uses them."""
