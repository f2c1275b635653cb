"""The architectures of Clockwork's model zoo, with random weights: GluonCV's networks, rebuilt from their papers, with torchvision's blocks
where it has them. `export.py` compares their parameters with the published weights.
"""

import torch
from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet, conv1x1

LAYERS = {18: (BasicBlock, [2, 2, 2, 2]), 34: (BasicBlock, [3, 4, 6, 3]), 50: (Bottleneck, [3, 4, 6, 3]), 101: (Bottleneck, [3, 4, 23, 3]), 152: (Bottleneck, [3, 8, 36, 3])}


def resnet(depth: int, classes: int = 1000) -> ResNet:
    """GluonCV's `v1b`, which is torchvision's: a bottleneck halves the image in its 3x3 convolution."""
    return ResNet(*LAYERS[depth], num_classes=classes)


def resnet_v1(depth: int) -> ResNet:
    """The first ResNet: a bottleneck halves the image in its first convolution."""
    module = resnet(depth)
    for block in module.modules():
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return module


def deep_stem(module: ResNet, width: int) -> ResNet:
    """`v1c` (width 32) and `v1s` (width 64): three 3x3 convolutions in place of the first 7x7."""
    module.conv1 = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.Conv2d(width, 2 * width, 3, 1, 1, bias=False),
    )
    if width != 32:
        module.bn1 = nn.BatchNorm2d(2 * width)
        first = module.layer1[0]
        first.conv1 = conv1x1(2 * width, first.conv1.out_channels)
        first.downsample[0] = conv1x1(2 * width, first.downsample[0].out_channels)
    return module


def resnet_v1d(depth: int) -> ResNet:
    """`v1d`: `v1c`, and shortcuts that halve the image by an average."""
    module = deep_stem(resnet(depth), 32)
    for layer in (module.layer2, module.layer3, module.layer4):
        convolution, normalisation = layer[0].downsample
        convolution.stride = (1, 1)
        layer[0].downsample = nn.Sequential(nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), convolution, normalisation)
    return module


class PreActivation(nn.Module):
    """A block of ResNet v2: normalisation and activation come before each convolution."""

    def __init__(self, channels_in: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        out = 4 * width if deep else width
        self.first = nn.BatchNorm2d(channels_in)
        convolutions = (
            [nn.Conv2d(channels_in, width, 1, bias=False), nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.Conv2d(width, out, 1, bias=False)]
            if deep
            else [nn.Conv2d(channels_in, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)]
        )
        layers = [convolutions[0]]
        for convolution in convolutions[1:]:
            layers += [nn.BatchNorm2d(convolution.in_channels), nn.ReLU(True), convolution]
        self.layers = nn.Sequential(*layers)
        self.shortcut = nn.Conv2d(channels_in, out, 1, stride, bias=False) if stride != 1 or channels_in != out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.layers(y) + (x if self.shortcut is None else self.shortcut(y))


def resnet_v2(depth: int) -> nn.Module:
    """ResNet v2."""
    block, layers = LAYERS[depth]
    deep = block is Bottleneck
    parts: list[nn.Module] = [nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for i, count in enumerate(layers):
        width = 64 << i
        for j in range(count):
            parts.append(PreActivation(channels, width, 2 if j == 0 and i > 0 else 1, deep))
            channels = 4 * width if deep else width
    return nn.Sequential(*parts, nn.BatchNorm2d(channels), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def cifar_wideresnet(depth: int, factor: int) -> nn.Module:
    """A wide ResNet v2 for images of 32 x 32."""
    parts: list[nn.Module] = [nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    channels = 16
    for i in range(3):
        width = (16 << i) * factor
        for j in range((depth - 4) // 6):
            parts.append(PreActivation(channels, width, 2 if j == 0 and i > 0 else 1, False))
            channels = width
    return nn.Sequential(*parts, nn.BatchNorm2d(channels), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Excitation(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels // 16, 1), nn.ReLU(True), nn.Conv2d(channels // 16, channels, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


def resnext(depth: int, groups: int, excited: bool = False) -> ResNet:
    """ResNeXt with groups of width 4, optionally with squeeze and excitation."""
    module = ResNet(*LAYERS[depth], groups=groups, width_per_group=4)
    for block in module.modules():
        if excited and isinstance(block, Bottleneck):
            block.bn3 = nn.Sequential(block.bn3, Excitation(block.bn3.num_features))
    return module


class SplitAttention(nn.Module):
    """A 3x3 convolution of ResNeSt in two splits, weighted by attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(width * 2 // 4, 32)
        self.convolution = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 1, 1, groups=2, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(True))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner), nn.ReLU(True), nn.Conv2d(inner, 2 * width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.convolution(x).chunk(2, 1)
        weights = self.gate(first + second)
        weights = weights.view(weights.size(0), 2, -1).softmax(1)
        one, two = weights.view(weights.size(0), -1, 1, 1).chunk(2, 1)
        return first * one + second * two


def resnest(layers: list[int], stem: int) -> ResNet:
    """ResNeSt with two splits, a deep stem and averages before its strides."""
    module = ResNet(Bottleneck, layers)
    module = deep_stem(module, stem)
    for i, layer in enumerate((module.layer1, module.layer2, module.layer3, module.layer4)):
        for j, block in enumerate(layer):
            width = block.conv2.out_channels
            split: nn.Module = SplitAttention(width)
            if j == 0 and i > 0:
                split = nn.Sequential(nn.AvgPool2d(3, 2, 1), split)
            block.conv2, block.bn2 = split, nn.Identity()
        if i > 0:
            convolution, normalisation = layer[0].downsample
            convolution.stride = (1, 1)
            layer[0].downsample = nn.Sequential(nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), convolution, normalisation)
    return module


class Separable(nn.Sequential):
    """A depthwise and a 1x1 convolution."""

    def __init__(self, channels_in: int, out: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(channels_in, channels_in, 3, stride, 1, groups=channels_in, bias=False), nn.BatchNorm2d(channels_in), nn.Conv2d(channels_in, out, 1, bias=False), nn.BatchNorm2d(out))


class Residual(nn.Module):
    """A sum of layers and a shortcut."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut = layers, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + self.shortcut(x)


def xception() -> nn.Module:
    """Xception 65, GluonCV's `xception`."""

    def block(channels_in: int, widths: list[int], stride: int) -> nn.Module:
        layers: list[nn.Module] = []
        channels = channels_in
        for i, width in enumerate(widths):
            layers += [nn.ReLU(), Separable(channels, width, stride if i == 2 else 1)]
            channels = width
        shortcut = nn.Identity() if channels_in == channels and stride == 1 else nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        return Residual(nn.Sequential(*layers), shortcut)

    stem = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(True), nn.Conv2d(32, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    entry = [block(64, [128] * 3, 2), block(128, [256] * 3, 2), block(256, [728] * 3, 2)]
    middle = [block(728, [728] * 3, 1) for _ in range(16)]
    leave = [block(728, [728, 1024, 1024], 2), Separable(1024, 1536), nn.ReLU(True), Separable(1536, 1536), nn.ReLU(True), Separable(1536, 2048), nn.ReLU(True)]
    return nn.Sequential(*stem, *entry, *middle, *leave, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def simple_pose(depth: int) -> nn.Module:
    """Simple Pose: a ResNet without its head, and three transposed convolutions."""
    body = nn.Sequential(*list(resnet(depth).children())[:-2])
    channels = 512 if depth < 50 else 2048
    head: list[nn.Module] = []
    for _ in range(3):
        head += [nn.ConvTranspose2d(channels, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True)]
        channels = 256
    return nn.Sequential(body, *head, nn.Conv2d(256, 17, 1))


def torchvision(name: str, classes: int = 1000) -> nn.Module:
    """A network of torchvision, without the heads that only training uses."""
    more = {"init_weights": False, "aux_logits": False} if name in ("inception_v3", "googlenet") else {}
    return models.get_model(name, weights=None, num_classes=classes, **more)


RESNETS = (18, 34, 50, 101, 152)
# The models by their names in the zoo. Absent are those whose architecture is not published (`tuned`), those that are another program of one
# that is here (`winograd`), DLA-34, and the poses of mobile_pose.
CLOCKWORK = {
    **{f"densenet{n}": (lambda n=n: torchvision(f"densenet{n}")) for n in (121, 161, 169, 201)},
    "googlenet": lambda: torchvision("googlenet"),
    "inceptionv3": lambda: torchvision("inception_v3"),
    "xception": xception,
    "simple_pose_resnet18_v1b": lambda: simple_pose(18),
    "resnest14": lambda: resnest([1, 1, 1, 1], 32),
    "resnest26": lambda: resnest([2, 2, 2, 2], 32),
    "resnest50": lambda: resnest([3, 4, 6, 3], 32),
    "resnest101": lambda: resnest([3, 4, 23, 3], 64),
    **{f"resnet{n}_v1": (lambda n=n: resnet_v1(n)) for n in RESNETS},
    **{f"resnet{n}_v1b": (lambda n=n: resnet(n)) for n in RESNETS},
    **{f"resnet{n}_v1c": (lambda n=n: deep_stem(resnet(n), 32)) for n in RESNETS[2:]},
    **{f"resnet{n}_v1d": (lambda n=n: resnet_v1d(n)) for n in RESNETS[2:]},
    **{f"resnet{n}_v1s": (lambda n=n: deep_stem(resnet(n), 64)) for n in RESNETS[2:]},
    **{f"resnet{n}_v2": (lambda n=n: resnet_v2(n)) for n in RESNETS},
    **{f"{'se_' * s}resnext{n}_{g}x4d": (lambda n=n, g=g, s=s: resnext(n, g, bool(s))) for s in (0, 1) for n, g in ((50, 32), (101, 32), (101, 64))},
    "tsn_inceptionv1_kinetics400": lambda: torchvision("googlenet", 400),
    "tsn_inceptionv3_kinetics400": lambda: torchvision("inception_v3", 400),
    **{f"tsn_resnet{n}_v1b_kinetics400": (lambda n=n: resnet(n, 400)) for n in RESNETS},
    **{f"cifar_wideresnet{n}_{f}": (lambda n=n, f=f: cifar_wideresnet(n, f)) for n, f in ((16, 10), (28, 10), (40, 8))},
}


def side(name: str) -> int:
    """The side of the images that a model of the zoo takes."""
    return 32 if name.startswith("cifar") else 299 if "inception" in name else 224
