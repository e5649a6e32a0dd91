"""The benchmark of drop-in cost: programs that replace PyTorch's DataLoader and nothing else, with bars."""
