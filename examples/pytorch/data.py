"""What the examples train: a small network that learns the sign of a sum."""

import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def rows(count=4096):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return x, (x.sum(1) > 0).long()


def batches(rank, world_size, batch_size=32):
    """This worker's batches: every world_size-th row."""
    x, y = rows()
    return list(zip(x[rank::world_size].split(batch_size), y[rank::world_size].split(batch_size)))


def accuracy(model):
    x, y = rows()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
