"""Small models with a known answer, as TorchScript files, each with its registration."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

# Every datatype of the protocol that a tensor can have.
DATATYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}


class Identity(nn.Module):
    """Returns a tensor of each datatype as it came, in the order of DATATYPES."""

    def forward(
        self,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        e: Tensor,
        f: Tensor,
        g: Tensor,
        h: Tensor,
        i: Tensor,
        j: Tensor,
        k: Tensor,
        l: Tensor,
        m: Tensor,
    ) -> tuple[
        Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
    ]:
        return a, b, c, d, e, f, g, h, i, j, k, l, m


class SumAndDifference(nn.Module):
    """Two inputs, two outputs."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a + b, a - b


class Convolutions(nn.Module):
    """A small network with what real ones have: convolution, normalisation, pooling."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class Headed(nn.Module):
    """A head of its own behind a backbone that others have, too."""

    def __init__(self, backbone: nn.Module, head: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.backbone(image))


class Slow(nn.Module):
    """Some milliseconds of work, so that requests have to wait for each other."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(200):
            x = x + 0.01 * torch.sin(self.turn(x))
        return x


class SumOfRow(nn.Module):
    """The sum of each row, however long: zeros at the end change nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


class Double(nn.Module):
    """As long as its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Glutton(nn.Module):
    """Doubles with some milliseconds of work, and wants more memory than any machine has for more than 256 numbers."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        wanted = 1 << 50 if x.numel() > 256 else 1
        work = torch.zeros([1, 256])
        for _ in range(200):
            work = torch.sin(self.turn(work))
        return x * 2 + torch.zeros([wanted], dtype=torch.uint8)[:1] * work[0, 0]


class Moody(nn.Module):
    """Does as it is told by the first number: throws below 0, returns another shape above 0."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("told to throw")
        if bool((x > 0).any()):
            return x.expand(x.size(0), 3)
        return x


class Spin(nn.Module):
    """Counts to the number it is given, and never ends when that is negative."""

    def forward(self, x: Tensor) -> Tensor:
        wanted = int(x[0].item())
        count = torch.zeros(1)
        while wanted < 0 or int(count.item()) < wanted:
            count = count + 1
        return count.expand(x.size(0), 1)


@dataclass
class Model:
    """A registration, the module, and its file."""

    registration: dict
    module: nn.Module
    file: Path

    @property
    def name(self) -> str:
        return self.registration["name"]

    def answer(self, *inputs: Tensor):
        """What PyTorch itself answers."""
        with torch.inference_mode():
            return self.module(*inputs)


def tensor(name: str, datatype: str, shape: list[int], **more) -> dict:
    """An input or output of a registration."""
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def registration(name: str, inputs: list[dict], outputs: list[dict], **more) -> dict:
    """A registration with an SLO that no busy test machine misses."""
    given = {"name": name, "max_batch_size": 8, "slo_ms": 20000, "rate_rps": 1, "inputs": inputs, "outputs": outputs}
    return {**given, **more}


def make(folder: Path, module: nn.Module, given: dict) -> Model:
    """Writes the module as TorchScript."""
    module = module.eval()
    file = folder / f"{given['name']}-{given.get('version', 1)}.pt"
    torch.jit.script(module).save(str(file))
    return Model(given, module, file)


def identity(folder: Path) -> Model:
    """`in_DATATYPE` to `out_DATATYPE`, four numbers of each."""
    inputs = [tensor(f"in_{datatype}", datatype, [-1, 4]) for datatype in DATATYPES]
    outputs = [tensor(f"out_{datatype}", datatype, [-1, 4]) for datatype in DATATYPES]
    return make(folder, Identity(), registration("identity", inputs, outputs))


def sum_and_difference(folder: Path, **more) -> Model:
    """`a`, `b` to `sum`, `difference`."""
    inputs = [tensor("a", "FP32", [-1, 16]), tensor("b", "FP32", [-1, 16])]
    outputs = [tensor("sum", "FP32", [-1, 16]), tensor("difference", "FP32", [-1, 16])]
    return make(folder, SumAndDifference(), registration("sum-and-difference", inputs, outputs, **more))


def convolutions(folder: Path) -> Model:
    """`image` to `logits`."""
    torch.manual_seed(7)
    given = registration(
        "convolutions", [tensor("image", "FP32", [-1, 3, 32, 32])], [tensor("logits", "FP32", [-1, 10])]
    )
    return make(folder, Convolutions(), given)


def headed(folder: Path, count: int) -> list[Model]:
    """`image` to `logits` of as many classes as the head has, all heads on one backbone."""
    torch.manual_seed(7)
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    image = tensor("image", "FP32", [-1, 3, 32, 32])
    made = []
    for classes in range(2, 2 + count):
        given = registration(f"head-{classes}", [image], [tensor("logits", "FP32", [-1, classes])])
        made.append(make(folder, Headed(backbone, nn.Linear(32, classes)), given))
    return made


def slow(folder: Path) -> Model:
    """`x` to `y`, 256 numbers each; see `Slow`."""
    torch.manual_seed(7)
    x, y = (tensor(n, "FP32", [-1, 256]) for n in "xy")
    return make(folder, Slow(), registration("slow", [x], [y]))


def sum_of_row(folder: Path) -> Model:
    """`x` of any length to `sum`; lengths are padded to share a batch."""
    x = tensor("x", "FP32", [-1, -1], pad={"axis": 1, "value": 0})
    return make(folder, SumOfRow(), registration("sum-of-row", [x], [tensor("sum", "FP32", [-1, 1])]))


def double(folder: Path) -> Model:
    """`x` of any length to `y` of the same; unpadded."""
    x, y = (tensor(n, "FP32", [-1, -1]) for n in "xy")
    return make(folder, Double(), registration("double", [x], [y]))


def glutton(folder: Path, **more) -> Model:
    """`x` of any length to `y` of the same, as long as there is memory; see `Glutton`."""
    x, y = (tensor(n, "FP32", [-1, -1]) for n in "xy")
    return make(folder, Glutton(), registration("glutton", [x], [y], **more))


def without_batch(folder: Path) -> Model:
    """`x` to `y`, one request at a time."""
    x, y = (tensor(n, "INT64", [-1]) for n in "xy")
    return make(folder, Double(), registration("without-batch", [x], [y], max_batch_size=0))


def moody(folder: Path) -> Model:
    """See `Moody`; one request at a time, so that nobody else gets its moods."""
    x, y = (tensor(n, "FP32", [-1, 1]) for n in "xy")
    return make(folder, Moody(), registration("moody", [x], [y], max_batch_size=1))


def spin(folder: Path, **more) -> Model:
    """See `Spin`."""
    x, y = tensor("x", "INT64", [-1, 1]), tensor("count", "FP32", [-1, 1])
    return make(folder, Spin(), registration("spin", [x], [y], **{"max_batch_size": 1, **more}))


def simulated(name: str, **more) -> dict:
    """The registration of a model for simulated devices, which read no file: four numbers to two."""
    inputs, outputs = [tensor("x", "FP32", [-1, 4])], [tensor("y", "FP32", [-1, 2])]
    return registration(name, inputs, outputs, **{"rate_rps": 10, **more})


def profiles(folder: Path, latencies_ms: dict[str, float], kind: str = "V100-SXM2-16GB", memory_mib: int = 500, used: str = "30") -> Path:
    """Profiles for simulated devices: a latency that does not depend on the batch, up to 8 rows. Nothing is `used` where that is not measured."""
    lines = [
        "model,device_kind,batch_size,compute_share_pct,latency_ms,latency_p99_ms,memory_mib,"
        "achieved_occupancy_pct,mean_occupancy_pct,sm_utilization_pct"
    ]
    for name, latency in latencies_ms.items():
        lines += [f"{name},{kind},{batch},,{latency},,{memory_mib},{used},{used},{used}" for batch in (1, 2, 4, 8)]
    file = folder / "profiles.csv"
    file.write_text("\n".join(lines) + "\n")
    return file
