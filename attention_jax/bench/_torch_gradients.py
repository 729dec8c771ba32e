"""The models of `bench compile` in PyTorch: `CASES[name](torch, device, layers)` is a function that computes a loss and
all gradients once, by torch.compile and under bfloat16 autocast."""

import functools

from attention_jax import config
from attention_jax.bench import _torch_transformer
from attention_jax.bench.bench_compile import CLASSES, IMAGES, LENGTH, PAIRS, PIXELS, VOCABULARY


def gradient(torch, device, model, loss):
    """`loss(model)` and its gradients, compiled."""
    model = model.to(device)

    @torch.compile
    def total():
        with torch.autocast(device.type, torch.bfloat16):
            return loss(model)

    def run():
        model.zero_grad()
        total().backward()

    return run


def vit(size: str, torch, device, layers: int):
    """A ViT with patches of 16 pixels and the mean of all tokens."""
    nn, functional = torch.nn, torch.nn.functional
    options = config.Vit(patch_size=16, **config.VIT_SIZES[size] | ({"layers": layers} if layers else {}))
    width, heads, tokens = options.hidden_size, options.heads, (PIXELS // 16) ** 2

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, options.mlp_size), nn.GELU(), nn.Linear(options.mlp_size, width))

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).reshape(IMAGES, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.transpose(1, 2).reshape(IMAGES, tokens, width))
            return x + self.mlp(self.norm2(x))

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(3, width, 16, 16)
            self.positions = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
            self.layers = nn.Sequential(*(Layer() for _ in range(options.layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2) + self.positions
            return self.head(self.norm(self.layers(x)).mean(1))

    images = torch.randn(IMAGES, 3, PIXELS, PIXELS, device=device)
    labels = torch.randint(0, CLASSES, (IMAGES,), device=device)
    return gradient(torch, device, Vit(), lambda model: functional.cross_entropy(model(images).float(), labels))


def transformer(torch, device, layers: int):
    """The base model with one table, label smoothing 0.1, without dropout."""
    depth = layers or config.Transformer().encoder_layers
    model = _torch_transformer.build(torch, VOCABULARY, VOCABULARY, 512, 8, 2048, depth, 0.0, True)
    source, target_in, target = torch.randint(4, VOCABULARY, (3, PAIRS, LENGTH), device=device)
    real = torch.ones(PAIRS, 1, 1, LENGTH, dtype=torch.bool, device=device)

    def loss(model):
        logits = model(source, real, target_in).flatten(0, 1).float()
        return torch.nn.functional.cross_entropy(logits, target.flatten(), label_smoothing=0.1)

    return gradient(torch, device, model, loss)


CASES = {"vit_s": functools.partial(vit, "S"), "vit_b": functools.partial(vit, "B"), "transformer": transformer}
