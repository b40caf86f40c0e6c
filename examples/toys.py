"""Data and models for the examples: small, made on the spot, the same in every process.

Nothing is downloaded. A seed makes the data, so each worker makes the same data set and picks its samples by number.
"""

import torch
from torch import Tensor, nn

torch.set_num_threads(1)  # for models this small threads only get in each other's way

CLASSES = 10
LETTERS = "abcdefghijklmnopqrstuvwxyz .,"


def pictures(count: int = 2048, *, side: int = 16, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Noisy pictures of ten patterns, and which pattern each one shows."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, side, side, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return patterns[labels] + 1.5 * torch.randn(count, 1, side, side, generator=generator), labels


def text(count: int = 1024, *, length: int = 32, seed: int = 1) -> Tensor:
    """Lines of letters in which each letter says which few may follow: something for a transformer to find out."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.softmax(4 * torch.randn(len(LETTERS), len(LETTERS), generator=generator), dim=1)
    lines = [torch.randint(len(LETTERS), (count,), generator=generator)]
    for _ in range(length):
        lines.append(torch.multinomial(follows[lines[-1]], 1, generator=generator).squeeze(1))
    return torch.stack(lines, dim=1)


class Cnn(nn.Module):
    """Two convolutions with BatchNorm, and dropout: what makes a resized run differ when it is not taken care of."""

    def __init__(self, *, side: int = 16, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(width * (side // 4) ** 2, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class CharTransformer(nn.Module):
    """A causal transformer over letters. Given letters 0..n-1 it guesses letters 1..n."""

    def __init__(self, *, length: int = 32, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.letters(x) + self.places, mask=self.mask, is_causal=True))


def next_letter_loss(model: nn.Module, lines: Tensor) -> Tensor:
    """How badly the model guesses each next letter of these lines."""
    guesses = model(lines[:, :-1])
    return nn.functional.cross_entropy(guesses.flatten(0, 1), lines[:, 1:].flatten())
