"""Prints what ResNetTest.TheirOutputsAreThoseOfPyTorch (build_test.cc) expects: the outputs of the
three ResNets for its image and with its numbers. Needs numpy and PyTorch; takes no arguments.

The networks are those of He et al. 2015, "Deep residual learning for image recognition", with the
names of torchvision, and as there with a bottleneck's stride in its 3x3 convolution."""

import numpy
import torch
from torch import nn

# The constants of worker/base/split_mix.h and random.cc.
BITS = 2**64 - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
NAME_FACTOR = 0xD1342543DE82EF95


def mix64(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & BITS
    return z ^ (z >> 31)


def hash_bytes(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & BITS
    return value


def uniform(seed, names, count):
    """The first numbers of RandomStream(seed, names)."""
    key = mix64(seed + GOLDEN_GAMMA & BITS)
    for name in names:
        key = mix64(key * NAME_FACTOR + mix64(name + GOLDEN_GAMMA & BITS) & BITS)
    numbers = [mix64(key + i * GOLDEN_GAMMA & BITS) >> 11 for i in range(1, count + 1)]
    return numpy.array(numbers, numpy.float64) * 2.0**-53


def rounded(numbers):
    """What the model and its input have: numbers of float32."""
    return torch.from_numpy(numbers.astype(numpy.float32).astype(numpy.float64))


class Block(nn.Module):

    def __init__(self, inputs, channels, stride, is_bottleneck):
        super().__init__()
        outputs = channels
        if is_bottleneck:
            outputs = 4 * channels
            self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
            self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
            self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)
        else:
            self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.is_bottleneck = is_bottleneck
        self.downsample = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.is_bottleneck:
            out = self.bn3(self.conv3(torch.relu(out)))
        return torch.relu(out + self.downsample(x))


class ResNet(nn.Module):

    def __init__(self, blocks, is_bottleneck):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        outputs = 64
        for stage, count in enumerate(blocks):
            layer = nn.Sequential()
            for i in range(count):
                channels, stride = 64 << stage, 2 if stage > 0 and i == 0 else 1
                layer.append(Block(outputs, channels, stride, is_bottleneck))
                outputs = channels * (4 if is_bottleneck else 1)
            self.add_module(f"layer{stage + 1}", layer)
        self.fc = nn.Linear(outputs, 10)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def set_numbers(model):
    """As SetNumbers in build_test.cc."""
    for name, array in model.state_dict().items():
        if name.endswith(".num_batches_tracked"):
            continue
        numbers = uniform(1, [hash_bytes(name)], array.numel())
        if array.dim() > 1:
            numbers = (6 / array[0].numel())**0.5 * (2 * numbers - 1)
        else:
            numbers += -0.5 if name.endswith((".bias", ".running_mean")) else 0.5
        array.copy_(rounded(numbers).reshape(array.shape))


def main():
    height, width = 64, 48
    # The channels of a pixel are next to each other.
    image = rounded(2 * uniform(3, [], height * width * 3) - 1).reshape(1, height, width, 3)
    for name, blocks, is_bottleneck in (("resnet18", (2, 2, 2, 2), False),
                                        ("resnet34", (3, 4, 6, 3), False),
                                        ("resnet50", (3, 4, 6, 3), True)):
        model = ResNet(blocks, is_bottleneck).double().eval()
        with torch.no_grad():
            set_numbers(model)
            outputs = model(image.permute(0, 3, 1, 2))[0]
        print(name, ", ".join(f"{output:.7g}" for output in outputs.tolist()))


if __name__ == "__main__":
    main()
