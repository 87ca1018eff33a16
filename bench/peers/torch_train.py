"""What train_worker does, with PyTorch: prints images a second.

    torch_train.py MODEL CHANNELS SIDE BATCH THREADS SECONDS
"""

import sys
import time

import torch
from torch import nn


def lenet(channels, side):
    rest = side // 4
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * rest * rest, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10))


class Block(nn.Module):
    """ResNet's basic block, as torchvision's."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Identity()
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


def resnet18(channels):
    layers = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64),
              nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for outputs in (64, 128, 256, 512):
        layers += [Block(inputs, outputs, 2 if outputs > 64 else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def main():
    name, channels, side, batch, threads = sys.argv[1], *map(int, sys.argv[2:6])
    seconds = float(sys.argv[6])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = lenet(channels, side) if name == "lenet" else resnet18(channels)
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    loss = nn.CrossEntropyLoss()
    images = torch.rand(batch, channels, side, side) * 2 - 1
    targets = torch.randint(0, 10, (batch,))

    def step():
        optimizer.zero_grad()
        loss(model(images), targets).backward()
        optimizer.step()

    for _ in range(3):
        step()
    begin = time.monotonic()
    steps = 0
    while time.monotonic() - begin < seconds:
        step()
        steps += 1
    print(steps * batch / (time.monotonic() - begin))


main()
