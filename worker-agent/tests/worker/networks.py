"""Writes random networks to the folder on the command line: `SEED.pt`, a TorchScript program, and `SEED.json`, its signature with random inputs and
the answers of plain PyTorch to them. A seed always gives the same network.

    networks.py FOLDER FIRST_SEED COUNT

The networks are tiny. They have what libtorch rewrites when it optimises a program, in unusual combinations: it was so that each of the wrong
rewritings in csrc/rewriting.cpp was found.
"""

import json
import random
import sys
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Network:
    """A network as it grows: lines of `__init__` and of `forward`, and the values that a later operator may read."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.parts = []
        self.lines = []
        # Names of values with their shapes without the batch, by the number of their dimensions.
        self.values = []
        self.count = 0

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def chance(self, probability):
        return self.random.random() < probability

    def part(self, source):
        name = self.name("m")
        self.parts.append(f"self.{name} = {source}")
        return f"self.{name}"

    def let(self, source, shape):
        name = self.name("v")
        self.lines.append(f"{name} = {source}")
        self.values.append((name, tuple(shape)))
        return name

    def last(self):
        return self.values[-1]

    def like(self, shape):
        """Another value with this shape, or the same."""
        return self.random.choice([name for name, other in self.values if other == tuple(shape)])


def window(net, dims, padding=True):
    kernel = net.random.choice([1, 2, 3, 3])
    stride = net.random.choice([1, 1, 2])
    pad = net.random.randint(0, kernel // 2) if padding else 0
    return kernel, stride, pad


def convolved(size, kernel, stride, pad, dilation=1):
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def pooled(size, kernel, stride, pad, ceil):
    if not ceil:
        return convolved(size, kernel, stride, pad)
    out = -(-(size + 2 * pad - kernel) // stride) + 1
    return out - 1 if (out - 1) * stride >= size + pad else out


def convolution(net):
    name, shape = net.last()
    dims = len(shape) - 1
    channels = shape[0]
    kernel, stride, pad = window(net, dims)
    dilation = net.random.choice([1, 1, 1, 2])
    sizes = [convolved(size, kernel, stride, pad, dilation) for size in shape[1:]]
    if min(sizes) < 1:
        return
    groups = net.random.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    out = groups * net.random.choice([1, 2, 3, 4, 5])
    padding, padding_mode = str(pad), "zeros"
    if net.chance(0.1):
        padding, sizes = ("'same'", shape[1:]) if stride == 1 else ("'valid'", [convolved(s, kernel, stride, 0, dilation) for s in shape[1:]])
        if min(sizes) < 1:
            return
    elif pad and pad < min(shape[1:]) and net.chance(0.15):
        padding_mode = net.random.choice(["replicate", "circular"])
    module = net.part(
        f"nn.Conv{dims}d({channels}, {out}, {kernel}, stride={stride}, padding={padding}, dilation={dilation}, groups={groups}, "
        f"bias={net.chance(0.7)}, padding_mode='{padding_mode}')"
    )
    net.let(f"{module}({name})", (out, *sizes))


def transposed(net):
    name, shape = net.last()
    dims = len(shape) - 1
    if max(shape[1:]) > 16:
        return
    stride = net.random.choice([1, 2])
    out = net.random.choice([2, 3, 4])
    extra = stride - 1 if net.chance(0.5) else 0
    sizes = [(size - 1) * stride + 2 + extra + 1 - 1 for size in shape[1:]]
    module = net.part(f"nn.ConvTranspose{dims}d({shape[0]}, {out}, 2, stride={stride}, output_padding={extra}, bias={net.chance(0.7)})")
    net.let(f"{module}({name})", (out, *sizes))


def pooling(net):
    name, shape = net.last()
    dims = len(shape) - 1
    kernel, stride, pad = window(net, dims)
    ceil = net.chance(0.5)
    sizes = [pooled(size, kernel, stride, pad, ceil) for size in shape[1:]]
    if min(sizes) < 1 or min(shape[1:]) + 2 * pad < kernel:
        return
    if net.chance(0.6):
        more = "" if dims > 1 and net.chance(0.7) or dims == 1 else ", divisor_override=3"
        source = f"nn.AvgPool{dims}d({kernel}, {stride}, {pad}, ceil_mode={ceil}, count_include_pad={net.chance(0.7)}{more})"
    else:
        source = f"nn.MaxPool{dims}d({kernel}, {stride}, {pad}, ceil_mode={ceil})"
    net.let(f"{net.part(source)}({name})", (shape[0], *sizes))


def adaptive(net):
    name, shape = net.last()
    dims = len(shape) - 1
    size = net.random.choice([1, 1, 2, 3, 4])
    kind = net.random.choice(["Avg", "Avg", "Max"])
    net.let(f"{net.part(f'nn.Adaptive{kind}Pool{dims}d({size})')}({name})", (shape[0], *[size] * dims))


def normalization(net):
    name, shape = net.last()
    dims = len(shape) - 1
    kinds = [
        f"nn.BatchNorm{dims}d({shape[0]})",
        f"nn.BatchNorm{dims}d({shape[0]}, affine=False)",
        f"nn.BatchNorm{dims}d({shape[0]}, eps=0.5)",
        f"nn.GroupNorm(1, {shape[0]})",
        f"nn.LayerNorm({shape[-1]})",
        f"nn.LayerNorm({list(shape)})",
        f"nn.LayerNorm({shape[-1]}, elementwise_affine=False)",
    ]
    net.let(f"{net.part(net.random.choice(kinds))}({name})", shape)


ACTIVATIONS = [
    "nn.ReLU()", "nn.ReLU(inplace=True)", "nn.ReLU6()", "nn.ReLU6(inplace=True)", "nn.GELU()", "nn.GELU(approximate='tanh')", "nn.Sigmoid()",
    "nn.Hardsigmoid()", "nn.Hardsigmoid(inplace=True)", "nn.Hardswish()", "nn.Hardswish(inplace=True)", "nn.Tanh()", "nn.SiLU()",
    "nn.SiLU(inplace=True)", "nn.PReLU()", "nn.LeakyReLU(0.1)", "nn.ELU()", "nn.Hardtanh(-0.5, 0.7)", "nn.Hardtanh(0.2, 0.7)", "nn.Softplus()",
    "nn.Mish()", "nn.Dropout(0.5)", "nn.Dropout(0.5, inplace=True)", "nn.Identity()", "nn.Softmax(dim=1)", "nn.LogSoftmax(dim=1)",
]


def activation(net):
    name, shape = net.last()
    net.let(f"{net.part(net.random.choice(ACTIVATIONS))}({name})", shape)


def elementwise(net):
    name, shape = net.last()
    other = net.like(shape)
    number = round(net.random.uniform(-2, 2), 2)
    constant = net.part(f"nn.Parameter(torch.randn({[shape[0]] + [1] * (len(shape) - 1)}))")
    net.let(
        net.random.choice([
            f"{name} + {other}", f"{other} + {name}", f"{name} * {other}", f"{name} - {other}",
            f"torch.add({name}, {other}, alpha={number})", f"torch.add({other}, {name}, alpha={number})",
            f"torch.sub({name}, {other}, alpha={number})", f"{name} * {number}", f"{name} + {number}", f"{number} - {name}",
            f"{name} + {constant}", f"{constant} + {name}", f"{name} * {constant}", f"torch.add({name}, {constant}, alpha={number})",
            f"torch.add({constant}, {name}, alpha={number})", f"{name} / ({constant}.abs() + 1.0)", f"torch.clamp({name}, -0.5, 0.9)",
            f"torch.clamp({name}, min=0.1)", f"torch.maximum({name}, {other})", f"{name}.abs().sqrt()",
            f"torch.addcmul({name}, {other}, {other}, value=0.5)", f"torch.lerp({name}, {other}, 0.3)",
        ]),
        shape,
    )


def in_place(net):
    name, shape = net.last()
    other = net.like(shape)
    number = round(net.random.uniform(-2, 2), 2)
    net.lines.append(
        net.random.choice([
            f"{name}.add_({other}, alpha={number})", f"{name}.mul_({number})", f"{name} += {other}", f"{name} *= 0.5", f"{name}.relu_()",
            f"{name}[:, :1].mul_({number})", f"{name}[:, 0] = {number}", f"{name}.clamp_(-0.5, 0.5)", f"torch.sigmoid_({name})",
            f"{name}.sub_({other}, alpha={number})",
        ])
    )


def squeeze_excite(net):
    name, shape = net.last()
    dims = len(shape) - 1
    gate = net.random.choice(["torch.sigmoid", "F.hardsigmoid", "F.relu", "torch.tanh"])
    module = net.part(f"nn.Conv{dims}d({shape[0]}, {shape[0]}, 1)")
    axes = list(range(2, dims + 2))
    mean = net.random.choice([f"{name}.mean({axes}, keepdim=True)", f"F.adaptive_avg_pool{dims}d({name}, 1)"])
    weights = f"{gate}({module}({mean}))"
    net.let(net.random.choice([f"{name} * {weights}", f"{weights} * {name}", f"{name} + {weights}", f"{weights} + {name}"]), shape)


def residual(net):
    name, shape = net.last()
    dims = len(shape) - 1
    module = net.part(f"nn.Conv{dims}d({shape[0]}, {shape[0]}, {net.random.choice([1, 3])}, padding='same')")
    fixed = net.part(f"nn.Conv{dims}d({shape[0]}, {shape[0]}, 3, padding=1)")
    branch = net.random.choice([f"{module}({name})", f"{fixed}({name})", f"F.relu({fixed}({name}))", f"{fixed}(F.relu({name}))"])
    net.let(
        net.random.choice([
            f"F.relu({branch} + {name})", f"{name} + {branch}", f"torch.add({name}, {branch}, alpha=0.3)",
            f"torch.add({branch}, {name}, alpha=-1.5)", f"F.relu({name}) + {branch}",
        ]),
        shape,
    )


def control_flow(net):
    name, shape = net.last()
    dims = len(shape) - 1
    module = net.part(f"nn.Conv{dims}d({shape[0]}, {shape[0]}, 1)")
    result = net.name("v")
    if net.chance(0.5):
        net.lines += [
            f"{result} = {module}({name})",
            f"if {name}.size(0) > 1:",
            f"    {result} = F.relu({result}) + {name}",
            "else:",
            f"    {result} = torch.add({result}, {name}, alpha=0.5)",
        ]
    else:
        net.lines += [f"{result} = {name}", f"for i{net.count} in range({name}.size(0) + 1):", f"    {result} = torch.tanh({module}({result})) + {name}"]
    net.values.append((result, shape))


def join(net):
    name, shape = net.last()
    other = net.like(shape)
    source, channels = net.random.choice([
        (f"torch.cat([{name}, {other}], 1)", 2 * shape[0]),
        (f"{name}[:, :{max(1, shape[0] // 2)}]", max(1, shape[0] // 2)),
        (f"torch.chunk({name}, 1, 1)[0]", shape[0]),
        (f"{name}.flip([1])", shape[0]),
        (f"torch.stack([{name}, {other}], 0).sum(0)", shape[0]),
    ])
    if channels <= 16:
        net.let(source, (channels, *shape[1:]))


def resize(net):
    name, shape = net.last()
    dims = len(shape) - 1
    if max(shape[1:]) > 12:
        return
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    mode = net.random.choice(["nearest", mode])
    net.let(f"F.interpolate({name}, scale_factor=2.0, mode='{mode}')", (shape[0], *[2 * size for size in shape[1:]]))


def linear_last(net):
    name, shape = net.last()
    out = net.random.choice([shape[-1], 3, 5])
    net.let(f"{net.part(f'nn.Linear({shape[-1]}, {out}, bias={net.chance(0.7)})')}({name})", (*shape[:-1], out))


SPATIAL = [
    (convolution, 6), (pooling, 4), (activation, 4), (elementwise, 4), (normalization, 3), (in_place, 2), (residual, 2), (squeeze_excite, 1),
    (control_flow, 1), (join, 1), (adaptive, 1), (transposed, 1), (resize, 1), (linear_last, 1),
]


def spatial(net):
    dims = net.random.choice([1, 2, 2, 2, 3])
    sizes = [net.random.randint(5, 13 if dims < 3 else 8) for _ in range(dims)]
    if net.chance(0.5):
        sizes = [sizes[0]] * dims
    shape = (net.random.choice([1, 2, 3, 4, 8]), *sizes)
    net.values.append(("x", shape))
    convolution(net)
    blocks, weights = zip(*SPATIAL)
    for _ in range(net.random.randint(2, 9)):
        net.random.choices(blocks, weights)[0](net)
    if net.chance(0.4):
        name, last = net.last()
        width = 1
        for size in last:
            width *= size
        flat = net.let(f"{name}.flatten(1)", (width,))
        net.let(f"{net.part(f'nn.Linear({width}, 4)')}({flat})", (4,))
        if net.chance(0.3):
            net.let(f"{net.last()[0]}.argmax(1)", ())
    return "FP32", shape


def rows(net):
    """Layers on rows of features: perceptrons, also quantised."""
    width = net.random.choice([4, 8])
    length = net.random.choice([None, width, 5])
    shape = (width,) if length is None else (length, width)
    net.values.append(("x", shape))
    quantised = net.chance(0.25)
    for _ in range(net.random.randint(1, 5)):
        name, shape = net.last()
        out = net.random.choice([4, 8, shape[-1]])
        net.let(f"{net.part(f'nn.Linear({shape[-1]}, {out}, bias={net.chance(0.8)})')}({name})", (*shape[:-1], out))
        name, shape = net.last()
        channels = shape[0]
        net.let(
            net.random.choice([
                f"F.relu({name})", f"{net.part(f'nn.BatchNorm1d({channels})')}({name})", f"{net.part(f'nn.LayerNorm({shape[-1]})')}({name})",
                f"{name} + {net.like(shape)}", f"torch.add({name}, {net.like(shape)}, alpha=0.7)", f"F.gelu({name})",
                f"torch.softmax({name}, -1)", f"{name} * 0.5", f"F.silu({name})",
            ]),
            shape,
        )
    net.quantised = quantised
    return "FP32", net.values[0][1]


def sequence(net):
    """Attention and recurrent layers."""
    width = net.random.choice([4, 8])
    length = net.random.randint(3, 9)
    net.values.append(("x", (length, width)))
    for _ in range(net.random.randint(1, 3)):
        name, shape = net.last()
        kind = net.random.choice(["gru", "lstm", "attention", "encoder", "sdpa", "conv"])
        if kind in ("gru", "lstm"):
            both = net.chance(0.4)
            module = net.part(f"nn.{kind.upper()}({width}, {width // 2 if both else width}, {net.random.choice([1, 2])}, batch_first=True, bidirectional={both})")
            net.let(f"{module}({name})[0]", shape)
        elif kind == "attention":
            module = net.part(f"nn.MultiheadAttention({width}, 2, batch_first=True)")
            net.let(f"{module}({name}, {name}, {name})[0]", shape)
        elif kind == "encoder":
            module = net.part(f"nn.TransformerEncoderLayer({width}, 2, 16, batch_first=True, norm_first={net.chance(0.5)})")
            net.let(f"{module}({name})", shape)
        elif kind == "sdpa":
            net.let(f"F.scaled_dot_product_attention({name}, {name}, {name}, is_causal={net.chance(0.5)})", shape)
        else:
            module = net.part(f"nn.Conv1d({width}, {width}, 3, padding=1)")
            net.let(f"{module}({name}.transpose(1, 2)).transpose(1, 2)", shape)
        if net.chance(0.5):
            name, shape = net.last()
            net.let(f"{net.part(f'nn.LayerNorm({width})')}({name} + {net.like(shape)})", shape)
    return "FP32", (length, width)


def tokens(net):
    """Embeddings of integers, which are below 100."""
    length = net.random.randint(3, 9)
    width = net.random.choice([4, 8])
    net.let(f"{net.part(f'nn.Embedding(100, {width})')}(x)", (length, width))
    for _ in range(net.random.randint(1, 3)):
        name, shape = net.last()
        net.let(f"{net.part(f'nn.Linear({shape[-1]}, {width})')}({name})", (length, width))
        activation(net)
        elementwise(net)
    return "INT64", (length,)


KINDS = [(spatial, 7), (rows, 2), (sequence, 1.5), (tokens, 0.7)]

TEMPLATE = """
class Made(nn.Module):
    def __init__(self):
        super().__init__()
        {parts}

    def forward(self, x: torch.Tensor):
        {lines}
        return {results}
"""


def made(seed):
    """Returns a network with this seed in evaluation mode, and the datatype and shape of its input."""
    net = Network(seed)
    net.quantised = False
    kinds, weights = zip(*KINDS)
    datatype, shape = net.random.choices(kinds, weights)[0](net)
    results = [net.last()[0]]
    own = [name for name, _ in net.values if name.startswith("v") and name != results[0]]
    if own and net.chance(0.5):
        # A value that is also used elsewhere.
        results.append(net.random.choice(own))
    source = TEMPLATE.format(
        parts="\n        ".join(net.parts or ["pass"]),
        lines="\n        ".join(net.lines),
        results=", ".join(results),
    )
    return net, source, datatype, shape


def instance(source, seed, folder):
    # Scripting reads the source from its file.
    path = f"{folder}/source_{seed}.py"
    with open(path, "w") as file:
        file.write(source)
    names = {"torch": torch, "nn": nn, "F": nn.functional, "__name__": f"source_{seed}"}
    exec(compile(source, path, "exec"), names)
    torch.manual_seed(seed)
    module = names["Made"]().eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.5, 2)
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 1.5)
                nn.init.uniform_(part.bias, -0.5, 0.5)
    return module


def encoded(tensor):
    return tensor.contiguous().numpy().tobytes().hex()


def nudged(x):
    """An input after a change of about one rounding, which shows how far a network carries roundings."""
    if not x.is_floating_point():
        return x.clone()
    return x * (1 + 2.0**-20 * (2 * torch.randint(0, 2, x.shape) - 1))


NAMES = {torch.float32: "FP32", torch.int64: "INT64"}


def write(folder, seed):
    """Writes a network; returns false if this seed gives none that plain PyTorch runs."""
    net, source, datatype, shape = made(seed)
    try:
        module = instance(source, seed, folder)
        if net.quantised:
            module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
        traced = net.chance(0.3) and "if " not in source and "for " not in source
        batches = [1, 3, 2]

        def random_input(count):
            if datatype == "INT64":
                return torch.randint(0, 100, (count, *shape))
            return torch.randn(count, *shape)

        inputs = [random_input(count) for count in batches]
        with torch.no_grad():
            program = torch.jit.trace(module, random_input(2).clone(), check_trace=False) if traced else torch.jit.script(module)
            # A program that writes to its input, or is random, has no answer of its own to an input.
            answers = [module(x.clone()) for x in inputs]
            again = [module(x.clone()) for x in inputs]
            near = [module(nudged(x)) for x in inputs]
    except Exception as error:  # noqa: BLE001
        print(f"seed {seed}: {type(error).__name__}", file=sys.stderr)
        return False
    answers = [answer if isinstance(answer, tuple) else (answer,) for answer in answers]
    again = [answer if isinstance(answer, tuple) else (answer,) for answer in again]
    near = [answer if isinstance(answer, tuple) else (answer,) for answer in near]
    if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for x, y in zip(answers, again) for a, b in zip(x, y)):
        return False
    if not all(answer.isfinite().all() and answer.abs().max() < 1e6 for answers_of in answers for answer in answers_of):
        return False
    program.save(f"{folder}/{seed}.pt")
    described = {
        "seed": seed,
        "source": source,
        "max_batch_size": 4,
        "inputs": [{"name": "x", "datatype": datatype, "shape": [-1, *shape]}],
        "outputs": [
            {"name": f"y{i}", "datatype": NAMES[answer.dtype], "shape": [-1, *answer.shape[1:]]} for i, answer in enumerate(answers[0])
        ],
        "cases": [
            {
                "rows": rows_of,
                "input": encoded(x),
                "answers": [encoded(answer) for answer in answers_of],
                "near": [encoded(answer) for answer in near_of],
            }
            for rows_of, x, answers_of, near_of in zip(batches, inputs, answers, near)
        ],
    }
    with open(f"{folder}/{seed}.json", "w") as file:
        json.dump(described, file)
    return True


folder, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
written = 0
while written < count:
    written += write(folder, seed)
    seed += 1
