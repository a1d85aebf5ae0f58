"""What sources are made of: running norms, learners, local weight gradients, random numbers, labels."""
