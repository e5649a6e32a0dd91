"""The benchmark of drop-in cost: programs that replace PyTorch's DataLoader and nothing else, compared with targets."""
