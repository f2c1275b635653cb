"""Writes the TorchScript programs of the worker's tests to the folder on the command line."""

import os
import sys
import warnings
from typing import Dict, List, NamedTuple, Tuple

import torch

warnings.filterwarnings("ignore", category=DeprecationWarning)


class Affine(torch.nn.Module):
    """y = x W^T + b with W = [[1, 2, 3], [0, 1, 0]] and b = [10, 20]."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]))
            self.linear.bias.copy_(torch.tensor([10.0, 20.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Moody(torch.nn.Module):
    """The first element of a batch decides its outcome."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mood = float(x[0, 0])
        if mood == 1.0:
            raise RuntimeError("the mood is 1")
        if mood == 2.0:
            return x[:, :1]
        if mood == 3.0:
            return x.to(torch.float64)
        if mood == 4.0:
            steps = 0
            while True:
                steps += 1
        if mood == 5.0:
            return x @ x.new_zeros([7, 7])
        return x + 1


class SumAndDifference(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


class Echo(torch.nn.Module):
    """Returns its input itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


class TwiceEach(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        return a * 2.0, b * 2.0


class TwiceExceptThree(torch.nn.Module):
    """Throws at a batch of three rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 3:
            raise RuntimeError("three rows")
        return x * 2.0


class Chain(torch.nn.Module):
    """Operators that a compiler would fuse into one kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2.0 + 1.0) * 4.0


class Counter(torch.nn.Module):
    """Returns its own state, which the next run changes in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.count


class Counting(Counter):
    """Returns its input, and counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + 0.0 * self.count


class Reader(torch.nn.Module):
    """Reads the file that it is asked for, and answers its first bytes."""

    def forward(self, path: torch.Tensor) -> torch.Tensor:
        name = ""
        for i in range(path.size(0)):
            name += chr(int(path[i]))
        if not name.startswith("/"):
            return torch.zeros(8)
        return torch.from_file(name, False, 8, dtype=torch.uint8).to(torch.float32)


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        return x, [x]


class Dictionary(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"x": x}


class Keyed(torch.nn.Module):
    """Answers dicts within a dict."""

    def forward(self, x: torch.Tensor) -> Dict[str, Dict[str, torch.Tensor]]:
        return {"late": {"sum": x + 1.0, "difference": x - 1.0}, "early": {"twice": 2.0 * x}}


class Detections(torch.nn.Module):
    """Answers as detection networks do: losses, of which there are none, and a dict for each image."""

    def forward(self, x: torch.Tensor) -> Tuple[Dict[str, torch.Tensor], List[Dict[str, torch.Tensor]]]:
        losses: Dict[str, torch.Tensor] = {}
        return losses, [{"boxes": x[0], "labels": x[0, :, 0].to(torch.int64), "scores": x[0, :, 1]}]


class Numbers(torch.nn.Module):
    """Answers numbers beside a tensor."""

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, int, float, bool]:
        return x, x.size(0), 0.5, True


class Titled(torch.nn.Module):
    """Answers a text beside a tensor."""

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, Tuple[str, int]]:
        return x, ("title", 1)


class Transposed(torch.nn.Module):
    """Returns a view that is not contiguous."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


class Lookup(torch.nn.Module):
    """Accepts only index 0, so that synthetic batches of ones fail."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(1, 2)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.table(index)


class Inverse(torch.nn.Module):
    """Throws for matrices of zeros, and of ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


class Windows(torch.nn.Module):
    """Throws for sequences that are shorter than its window."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(1, 100, 100).sum(2)


class Marked(torch.nn.Module):
    """Throws for sentences without a first and a last mark, which no synthetic input has."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if not bool(((ids[:, 0] == 101) & (ids[:, -1] == 102)).all()):
            raise RuntimeError("a sentence begins with 101 and ends with 102")
        return ids.to(torch.float32).mean(1, keepdim=True)


class Keeper(torch.nn.Module):
    """Returns the input of the previous run, which it keeps."""

    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.kept
        self.kept = x
        return before


class Collector(torch.nn.Module):
    """Returns the input of the previous run, of all that it collects."""

    collected: List[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.collected = [torch.zeros(1, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.collected.append(x)
        return self.collected[-2]


class Greedy(torch.nn.Module):
    """Requires more memory than there is for batches of more than two rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = 1 << 50 if x.size(0) > 2 else 1
        return x + torch.zeros([size], dtype=torch.uint8)[:1]


class Glutton(torch.nn.Module):
    """Requires more memory than there is for more than 256 elements."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = 1 << 50 if x.numel() > 256 else 1
        return x + torch.zeros([size], dtype=torch.uint8)[:1]


class Scaled(torch.nn.Module):
    """Multiplies each row of three by a row of its weights, of which there are 6 MB. Copies and one kernel are all that it needs of a GPU."""

    def __init__(self, factor: float):
        super().__init__()
        weights = torch.arange(1_500_000, dtype=torch.float32).view(-1, 3)
        self.register_buffer("weights", weights + factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weights[: x.size(0)]


class Ageing(torch.nn.Module):
    """Answers like Scaled, and changes its weights for three rows, in a list, where an analysis loses sight of them."""

    def __init__(self):
        super().__init__()
        self.weights = [torch.ones(500_000, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 3:
            self.weights[0].add_(1.0)
        return x * self.weights[0][: x.size(0)]


class Spacious(torch.nn.Module):
    """Has 64 MiB of activations, more than glibc ever keeps by default."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones([1 << 24], device=x.device)[-1]


class Backbone(torch.nn.Module):
    """Changes its intermediate results in place, and asks for the number of rows."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 16, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(16)
        self.relu = torch.nn.ReLU(inplace=True)
        self.deeper = torch.nn.Conv2d(16, 32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.convolution(x)))
        x = self.relu(self.deeper(x)).mean([2, 3], keepdim=True)
        return x.view(x.size(0), -1)


class Headed(torch.nn.Module):
    def __init__(self, backbone: Backbone, head: torch.nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


class InPlace(torch.nn.Module):
    """Overwrites what it gets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return x * 2.0


class Picky(torch.nn.Module):
    """Throws at what is above 9."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.max()) > 9.0:
            raise RuntimeError("it is too large")
        return x - 1.0


class RowsLast(torch.nn.Module):
    """A backbone after which the rows are the last dimension."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).t().contiguous()


class Upright(torch.nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.factor).t()


class Attention(torch.nn.Module):
    """Attention of 5 tokens to themselves, with 2 heads of 4 numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(2, [2, 4]).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return attended.transpose(1, 2).flatten(2)


def filter_of(channels: int, dims: int, factor: float) -> torch.nn.Module:
    """Returns a convolution that multiplies every channel by a factor."""
    kind = {2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dims]
    made = kind(channels, channels, 1, groups=channels, bias=False)
    with torch.no_grad():
        made.weight.fill_(factor)
    return made


class CeilPooled(torch.nn.Module):
    """The mean of windows, the last of which reach beyond the input, behind a convolution that changes nothing."""

    def __init__(self, dims: int):
        super().__init__()
        self.convolution = filter_of(1, dims, 1.0)
        self.pool = {2: torch.nn.AvgPool2d, 3: torch.nn.AvgPool3d}[dims](2, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.convolution(x))


class AddedTwice(torch.nn.Module):
    """5 x: x + 0.5 * 4 x, and 2 x. The first operand of the sum is used again, the second is not."""

    def __init__(self):
        super().__init__()
        self.once = filter_of(1, 2, 1.0)
        self.four_times = filter_of(1, 2, 4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.once(x)
        return torch.add(once, self.four_times(x), alpha=0.5) + once * 2.0


class Divided(torch.nn.Module):
    """Four means of any image, behind a convolution that changes nothing."""

    def __init__(self):
        super().__init__()
        self.convolution = filter_of(1, 2, 1.0)
        self.pool = torch.nn.AdaptiveAvgPool2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.convolution(x))


class Overwritten(torch.nn.Module):
    """Twice the input, of which the first row of each image is 3."""

    def __init__(self):
        super().__init__()
        self.convolution = filter_of(1, 2, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copied = x * 1.0
        copied[:, :, 0] = 3.0
        return self.convolution(copied)


class NormedRows(torch.nn.Module):
    """Takes 0, 1 and 2 from the rows of a matrix, behind a linear layer that changes nothing."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, bias=False)
        self.norm = torch.nn.BatchNorm1d(3, eps=1e-30, affine=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(3))
            self.norm.running_mean.copy_(torch.tensor([0.0, 1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class Chance(torch.nn.Module):
    """Answers something else each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class Strict(torch.nn.Module):
    """Accepts no random numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x != 0.0).any()):
            raise RuntimeError("only zeros")
        return x + 1.0


class Forked(torch.nn.Module):
    """Computes its parts as tasks of their own."""

    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.part.weight.copy_(2.0 * torch.eye(3))
            self.part.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.jit.fork(self.part, x)
        second = torch.jit.fork(self.part, x + 1.0)
        return torch.jit.wait(first) + torch.jit.wait(second)


class Answer(NamedTuple):
    half: torch.Tensor
    twice: torch.Tensor


class Scale(torch.nn.Module):
    """A part with attributes and a method of its own."""

    def __init__(self):
        super().__init__()
        self.factor = 2.0
        self.uses = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.uses += 1
        return x * self.factor

    @torch.jit.export
    def reset(self) -> None:
        self.uses = 0


class Versatile(torch.nn.Module):
    """Is saved in training mode, in which it would answer other numbers; has several methods and answers a named tuple."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3, eps=2.0, affine=False)
        self.norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
        self.norm.running_var.fill_(2.0)
        self.dropout = torch.nn.Dropout(0.9)
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(self.dropout(self.norm(x)), self.scale(x))

    @torch.jit.export
    def halves(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).half


torch.manual_seed(7)
backbone = Backbone().eval()
with torch.no_grad():
    backbone.norm.running_mean.uniform_(-1, 1)
    backbone.norm.running_var.uniform_(0.5, 2)
heads = {
    "Linear": torch.nn.Linear(32, 2),
    "Softmax": torch.nn.Sequential(torch.nn.Linear(32, 5), torch.nn.Softmax(dim=1)),
    "Identity": torch.nn.Identity(),
    "InPlace": InPlace(),
    "Picky": Picky(),
}
for name, head in heads.items():
    torch.jit.script(Headed(backbone, head).eval()).save(f"{sys.argv[1]}/Headed{name}.pt")
torch.jit.script(Headed(Backbone(), torch.nn.Linear(32, 2)).eval()).save(f"{sys.argv[1]}/HeadedOther.pt")
rows_last = RowsLast().eval()
for name, factor in [("Once", 1.0), ("Twice", 2.0)]:
    torch.jit.script(Headed(rows_last, Upright(factor)).eval()).save(f"{sys.argv[1]}/Upright{name}.pt")
torch.jit.script(Versatile().train()).save(f"{sys.argv[1]}/Versatile.pt")
torch.jit.trace(Overwritten().eval(), torch.ones(2, 1, 2, 2)).save(f"{sys.argv[1]}/Overwritten.pt")
for dims in [2, 3]:
    torch.jit.script(CeilPooled(dims).eval()).save(f"{sys.argv[1]}/CeilPooled{dims}d.pt")
for factor in [1, 2, 3]:
    torch.jit.script(Scaled(factor).eval()).save(f"{sys.argv[1]}/Scaled{factor}.pt")
for module in [Ageing, Inverse, Windows, Marked, AddedTwice, Divided, NormedRows, Chance, Strict, Forked, Spacious, Affine, Attention, Moody, SumAndDifference, Echo, Twice, TwiceEach, TwiceExceptThree, Chain, Counter, Counting, Dictionary, Nested, Keyed, Detections, Numbers, Titled, Reader, Transposed, Lookup, Keeper, Collector, InPlace, Greedy, Glutton]:
    torch.jit.script(module().eval()).save(f"{sys.argv[1]}/{module.__name__}.pt")

# What people take for programs.
linear = torch.nn.Linear(3, 2)
torch.save(linear.state_dict(), f"{sys.argv[1]}/weights")
torch.save(linear.state_dict(), f"{sys.argv[1]}/old-weights", _use_new_zipfile_serialization=False)
torch.save(linear, f"{sys.argv[1]}/module")
torch.export.save(torch.export.export(linear, (torch.zeros(1, 3),)), f"{sys.argv[1]}/exported.pt2")
os.replace(f"{sys.argv[1]}/exported.pt2", f"{sys.argv[1]}/exported")
