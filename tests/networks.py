"""Small networks of the kinds that people train, each with data and a loss: for tests that train them."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Heads of scaled dot products, causal or with a mask of -1e9."""

    def __init__(self, width, heads, *, masked):
        super().__init__()
        self.heads, self.masked = heads, masked
        self.inner, self.outer = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).triu(1))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inner(x).chunk(3, -1))
        if self.masked:
            weights = (q @ k.mT / 2).masked_fill(self.mask, -1e9).softmax(-1)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, *, masked):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = Attention(width, 2, masked=masked)
        self.gate, self.up, self.down = nn.Linear(width, 12), nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    """A network like Llama: embeddings, two blocks with RMSNorm, SiLU, attention with its own kernel or with a mask."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([Block(8, masked=False), Block(8, masked=True)])
        self.head = nn.Linear(8, 11)

    def data(self, draw):
        return (draw.integers(11, 3, 9),)

    def loss(self, tokens):
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


class Convolutional(nn.Module):
    """A network like ResNet: convolutions, batch norm, a residual, pooling, dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Sequential(nn.Dropout(0.25), nn.Linear(8, 5), nn.Dropout(0.25))

    def data(self, draw):
        return draw.normal(4, 2, 8, 8), draw.integers(5, 4)

    def loss(self, images, labels):
        x = self.first(images)
        x = F.relu(x + self.second(x)).mean((2, 3))
        return F.cross_entropy(self.head(x), labels)


class UNet(nn.Module):
    """Group norm, down and up again, what was before beside it, an embedding of time."""

    def __init__(self):
        super().__init__()
        self.time = nn.Linear(4, 4)
        self.enter, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.leave = nn.Conv2d(8, 1, 3, padding=1)

    def data(self, draw):
        return draw.normal(2, 1, 8, 8), draw.normal(2, 4)

    def loss(self, noise, t):
        x = self.enter(noise)
        y = F.gelu(self.norm(self.down(x)) + self.time(t.sin())[:, :, None, None])
        return F.mse_loss(self.leave(torch.cat((x, self.up(y)), 1)), noise)


class Recurrent(nn.Module):
    """A cell of an LSTM, step by step, and gradients that are clipped."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(3, 6), nn.Linear(6, 1)

    def data(self, draw):
        return (draw.normal(5, 4, 3),)

    def loss(self, x):
        state = x.new_zeros(4, 6), x.new_zeros(4, 6)
        outputs = []
        for step in x:
            state = self.cell(step, state)
            outputs.append(self.head(state[0]))
        return F.smooth_l1_loss(torch.stack(outputs), x.sum(-1, keepdim=True).cumsum(0))


class Graph(nn.Module):
    """Messages along edges: ``x[index]``, ``index_add``, means over neighbours."""

    def __init__(self):
        super().__init__()
        self.message, self.update = nn.Linear(8, 6), nn.Linear(10, 4)
        self.register_buffer("edges", torch.randint(0, 7, (2, 30), generator=torch.Generator().manual_seed(0)))

    def data(self, draw):
        return (draw.normal(7, 4),)

    def loss(self, x):
        source, target = self.edges
        messages = F.leaky_relu(self.message(torch.cat((x[source], x[target]), -1)), 0.1)
        count = x.new_zeros(7, 1).index_add(0, target, x.new_ones(30, 1)).clamp(min=1)
        mean = x.new_zeros(7, 6).index_add(0, target, messages) / count
        y = self.update(torch.cat((x, mean), -1))
        return (y[source] * y[target]).sum(-1).sigmoid().sub(0.1).square().mean()


class Mixture(nn.Module):
    """Experts, of which each token takes the best two; what none of them takes is masked."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(4, 6), nn.Mish(), nn.Linear(6, 4)) for _ in range(3)])

    def data(self, draw):
        return (draw.normal(6, 4),)

    def loss(self, x):
        best, chosen = self.router(x).topk(2)
        weights = x.new_zeros(6, 3).scatter(1, chosen, best.softmax(-1))
        y = sum(weights[:, i, None] * expert(x) for i, expert in enumerate(self.experts))
        return F.huber_loss(y, x.flip(-1)) + weights.mean(0).square().sum()


NETWORKS = [Transformer, Convolutional, UNet, Recurrent, Graph, Mixture]


class Draw:
    """Random data."""

    def __init__(self, seed, dtype):
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=self.dtype)

    def integers(self, end, *shape):
        return torch.randint(0, end, shape, generator=self.generator)
