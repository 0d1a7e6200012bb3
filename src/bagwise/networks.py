"""Small reference networks, so that an experiment needs no model library. Any `nn.Module` trains as well."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bagwise.bags.setting_checks import check_choice

NETWORK_NAMES = ("resnet18", "small-convnet", "mlp", "linear")


def build_network(name: str, input_shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """Build a network by name, with weights that depend on `seed` alone.

    Global random state is left as it was.

    Args:
        name: "resnet18", "small-convnet" (both for images), "mlp" or "linear" (for anything).
        input_shape: shape of one instance: `(channels, height, width)` or `(features,)`.
        num_classes: number of outputs (logits).
        seed: of the initial weights.

    Example:
        >>> network = build_network("small-convnet", (1, 8, 8), num_classes=10, seed=0)
        >>> network(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    check_choice("network", name, NETWORK_NAMES)
    # The layers of torch draw from the default CPU generator; torch.manual_seed would also reseed every GPU.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if name == "mlp":
            return mlp(math.prod(input_shape), num_classes)
        if name == "linear":
            return linear(math.prod(input_shape), num_classes)
        if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
            raise ValueError(
                f"{name} takes square images (channels, size, size), but input_shape is {tuple(input_shape)}. "
                "Use 'mlp' or 'linear' for other shapes."
            )
        channels, size, _ = input_shape
        if name == "resnet18":
            return resnet18(num_classes, channels)
        return small_convnet(num_classes, channels, size)


def split_head(network: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Return the body of a network, which gives features, and its head, the linear layer that comes last.

    Both share their weights with `network`: to train the body is to train the network.

    Example:
        >>> body, head = split_head(build_network("resnet18", (3, 32, 32), num_classes=10, seed=0))
        >>> body(torch.zeros(2, 3, 32, 32)).shape, head
        (torch.Size([2, 512]), Linear(in_features=512, out_features=10, bias=True))
    """
    path, last = list(network.named_modules())[-1]
    if not path or not isinstance(last, nn.Linear):
        raise ValueError(
            f"the last layer of the network must be an nn.Linear, but it is {type(last).__name__}. "
            "Let its module end with the nn.Linear that gives the logits (a lone layer: in an nn.Sequential)."
        )
    return _without(network, path.split(".")), last


def _without(module: nn.Module, path: list[str]) -> nn.Module:
    """A copy of `module` that shares everything with it but the layer at `path`, which does nothing."""
    name, *rest = path
    twin = copy.copy(module)
    layer = _without(getattr(module, name), rest) if rest else nn.Identity()
    twin._modules = {**module._modules, name: layer}
    return twin


def linear(num_features: int, num_classes: int) -> nn.Sequential:
    """Logistic regression on the flattened instance."""
    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, num_classes))


def mlp(num_features: int, num_classes: int, hidden: Sequence[int] = (256, 256)) -> nn.Sequential:
    """Fully connected layers with ReLU between them, on the flattened instance; no batch statistics."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(num_features, width), nn.ReLU(inplace=True)]
        num_features = width
    return nn.Sequential(*layers, nn.Linear(num_features, num_classes))


def small_convnet(num_classes: int, in_channels: int, image_size: int) -> nn.Sequential:
    """A convolutional net that is fast on a CPU, for images of about 8x8 to 32x32.

    3x3 convolutions with batch norm, 16 channels at first; while the image is larger than 4x4 it is halved by
    max-pooling and the channels are doubled, up to 64. A linear layer reads the last map as it is, so that
    places in the image count.
    """
    width, size = 16, image_size
    layers: list[nn.Module] = [_conv_norm(in_channels, width), nn.ReLU(inplace=True)]
    while size > 4:
        wider = min(2 * width, 64)
        layers += [nn.MaxPool2d(2), _conv_norm(width, wider), nn.ReLU(inplace=True)]
        width, size = wider, size // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * size * size, num_classes))


def resnet18(num_classes: int, in_channels: int = 3) -> ResNet18:
    """ResNet-18 for 32x32 images, as in the paper: 11,173,962 parameters for 10 classes of RGB images.

    Against ResNet-18 for ImageNet (He et al. 2016), the stem is one 3x3 convolution of stride 1 without
    max-pooling. Four stages of two basic blocks have 64, 128, 256 and 512 channels; global average pooling and
    a linear layer follow. The paper uses "no biases except for the last fully connected layer": so do we in the
    convolutions; batch norm keeps its scale and shift, as in the standard architecture.

    The scale of the last batch norm of each block starts at zero, so that every block starts as its shortcut
    (Goyal et al. 2017): training is stabler at the large learning rates of short schedules. The paper does not
    say how it initialises.
    """
    return ResNet18(num_classes, in_channels)


class ResNet18(nn.Module):
    """See `resnet18`. Input `[n, in_channels, height, width]`, output logits `[n, num_classes]`."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.stem = _conv_norm(in_channels, 64)
        self.stages = nn.Sequential(
            *(_BasicBlock(64, 64), _BasicBlock(64, 64)),
            *(_BasicBlock(64, 128, stride=2), _BasicBlock(128, 128)),
            *(_BasicBlock(128, 256, stride=2), _BasicBlock(256, 256)),
            *(_BasicBlock(256, 512, stride=2), _BasicBlock(512, 512)),
        )
        self.head = nn.Linear(512, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of `images`."""
        features = self.stages(F.relu(self.stem(images)))
        return self.head(F.adaptive_avg_pool2d(features, 1).flatten(1))


class _BasicBlock(nn.Module):
    """`relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))`."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        last_norm = nn.BatchNorm2d(out_channels)
        nn.init.zeros_(last_norm.weight)
        self.residual = nn.Sequential(
            _conv_norm(in_channels, out_channels, stride=stride),
            nn.ReLU(inplace=True),
            _conv(out_channels, out_channels),
            last_norm,
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same_shape else _conv_norm(in_channels, out_channels, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.residual(x))


def _conv_norm(in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_conv(in_channels, out_channels, kernel, stride), nn.BatchNorm2d(out_channels))


def _conv(in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
