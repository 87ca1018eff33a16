"""Does the same as train_alone, with PyTorch: prints the number of images per second. Takes the
same flags, and --layout: the order in which images and kernels of convolutions are in memory.

The exit code is 3 if there is no PyTorch, or if it cannot use the device.
"""

import argparse
import contextlib
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as missing:
    print(f"{sys.executable}: {missing}", file=sys.stderr)
    sys.exit(3)


def lenet(channels, side, classes):
    rest = side // 4
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * rest * rest, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes))


class Block(nn.Module):
    """ResNet's basic block, the same as in torchvision."""

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


def resnet(blocks, channels, classes):
    """Returns a ResNet of basic blocks. `blocks` has the number of blocks in each stage."""
    layers = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64),
              nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for outputs, count in zip((64, 128, 256, 512), blocks):
        layers.append(Block(inputs, outputs, 2 if outputs > 64 else 1))
        layers += [Block(outputs, outputs, 1) for _ in range(count - 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def build(options):
    if options.model == "lenet":
        return lenet(options.channels, options.side, options.classes)
    blocks = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
    return resnet(blocks[options.model], options.channels, options.classes)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("channels", "side", "classes", "batch", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--layout", choices=["nchw", "channels_last"], default="nchw")
    return parser.parse_args()


def main():
    options = parse()
    on_gpu = options.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} has no {options.device}", file=sys.stderr)
        sys.exit(3)
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    may_round = options.precision != "f32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = may_round
    torch.backends.cudnn.benchmark = True
    layout = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}[options.layout]
    model = build(options).to(options.device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    loss = nn.CrossEntropyLoss()
    images = torch.randint(0, 256, (options.batch, options.channels, options.side, options.side),
                           dtype=torch.uint8).contiguous(memory_format=layout)
    targets = torch.randint(0, options.classes, (options.batch,))
    if on_gpu:
        images, targets = images.pin_memory(), targets.pin_memory()

    def precision():
        if options.precision == "bf16":
            return torch.autocast(torch.device(options.device).type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def step():
        batch = images.to(options.device, non_blocking=True).float().mul_(2 / 255).sub_(1)
        right = targets.to(options.device, non_blocking=True)
        optimizer.zero_grad()
        with precision():
            value = loss(model(batch), right)
        value.backward()
        optimizer.step()

    def finish():
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    finish()
    begin = time.monotonic()
    steps = 0
    while time.monotonic() - begin < options.seconds:
        step()
        steps += 1
    finish()
    print(steps * options.batch / (time.monotonic() - begin))


if __name__ == "__main__":
    main()
