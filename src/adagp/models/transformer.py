"""The Transformer of 3 encoder and 3 decoder layers from ADA-GP's evaluation, and a small vision transformer of its blocks.

After Vaswani et al. (2017), with normalisation before each block instead of after it (Xiong et al. 2020), which needs no
warm-up of the learning rate, and with one embedding for both languages and the output layer (Press, Wolf 2017). The papers on
gradient prediction do not state its sizes; at width 1 they are those of the base model of 2017.

Every projection of the attention and both layers of each feed-forward block are `nn.Linear` modules that are called, and
therefore sites. The embedding is not a site: it is a lookup table in one place and a matrix factor in another.

Real positions never attend to padding, so it has no influence on their values, the loss, or the true gradients. A site's
summary for the predictor is the mean of its outputs over the batch at each position, padded ones included: leaving them out
would need a mask in every rule. Batches sorted by length (`adagp.data.translation`) have little padding.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.errors import OptionError
from adagp.models.registry import BEGIN, END, PAD

HEADS = 8
SIZE, HIDDEN = 512, 2048
LAYERS = 3

KeyValues = tuple[Tensor, Tensor]
"""Keys and values `(N, heads, positions, size of a head)`."""


def transformer(vocabulary: int, width: float) -> "Transformer":
    """Return a model for `vocabulary` word pieces, with `width` times the sizes of the base model."""
    return Transformer(vocabulary, scaled_size(SIZE, width), round(HIDDEN * width))


def scaled_size(published: int, width: float) -> int:
    """Return `width` times the published features of a position; raise if the heads do not divide it."""
    size, unit = round(published * width), published // HEADS
    if size < HEADS or size % HEADS or abs(published * width - size) > 1e-6:
        below = max(1, int(width * unit))
        raise OptionError(
            f"width {width:g} does not divide into {HEADS} attention heads; choose a multiple of 1/{unit}, "
            f"such as {below / unit:g} or {(below + 1) / unit:g}."
        )
    return size


class Transformer(nn.Module):
    """Encoder and decoder: reads a sentence and predicts the next word piece at each position of its translation.

    Tokens are int64 `(N, T)` with PAD after the end of short sentences.
    """

    def __init__(self, vocabulary: int, size: int, hidden: int, layers: int = LAYERS, dropout: float = 0.1) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(vocabulary, size, padding_idx=PAD)
        self.encoder = nn.ModuleList(EncoderLayer(size, hidden, dropout) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(size)
        self.decoder = nn.ModuleList(DecoderLayer(size, hidden, dropout) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return scores `(N, T, vocabulary)` for the piece after each position of `target_in`."""
        return self._decode(target_in, self.begin(source))[0]

    def begin(self, source: Tensor) -> "Decoding":
        """Encode the source sentences; return the state of decoding before the first piece."""
        mask = (source != PAD)[:, None, None, :]  # broadcast over heads and query positions
        x = self._embed(source, 0)
        for layer in self.encoder:
            x = layer(x, mask)
        memory = self.encoder_norm(x)
        layers = [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]
        return Decoding(mask, [layer.attention_to_source.remember(memory) for layer in layers], [])

    def advance(self, tokens: Tensor, state: "Decoding") -> tuple[Tensor, "Decoding"]:
        """Add one piece `(N,)` to each sentence; return scores `(N, vocabulary)` for the next, and the new state."""
        scores, state = self._decode(tokens[:, None], state)
        return scores[:, 0], state

    def _decode(self, tokens: Tensor, state: "Decoding") -> tuple[Tensor, "Decoding"]:
        x = self._embed(tokens, state.position)
        past: list[KeyValues] = []
        for number, layer in enumerate(self.decoder):
            before = state.past[number] if state.past else None
            x, keys_values = layer(x, before, state.source[number], state.mask)
            past.append(keys_values)
        return F.linear(self.decoder_norm(x), self.embedding.weight), replace(state, past=past)

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        positions = sinusoids(first, tokens.shape[1], self.size, tokens.device)
        x: Tensor = self.dropout(self.embedding(tokens) * self.size**0.5 + positions)
        return x


@dataclass(frozen=True)
class Decoding:
    """The decoder's cache: keys and values of the source, and of the pieces so far, for each layer."""

    mask: Tensor
    source: list[KeyValues]
    past: list[KeyValues]

    @property
    def position(self) -> int:
        """The number of pieces so far."""
        return self.past[0][0].shape[2] if self.past else 0

    def repeat(self, times: int) -> "Decoding":
        """Return the state before the first piece with each sentence `times` times in a row."""
        source = [(k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)) for k, v in self.source]
        return Decoding(self.mask.repeat_interleave(times, 0), source, [])

    def reorder(self, rows: Tensor) -> "Decoding":
        """Return the state in which row n continues the pieces of row `rows[n]`, which has the same source."""
        return replace(self, past=[(k[rows], v[rows]) for k, v in self.past])


class EncoderLayer(nn.Module):
    """Attention among the positions of a sentence, then a feed-forward block."""

    def __init__(self, size: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return `x` `(N, T, size)` after the layer; no position attends to those where `mask` is False.

        Without a mask, a position attends to itself and those before it.
        """
        y = self.norms[0](x)
        x = x + self.dropout(self.attention(y, self.attention.remember(y), mask, causal=mask is None))
        y = self.dropout(self.feed_forward(self.norms[1](x)))
        return torch.add(x, y)


class DecoderLayer(nn.Module):
    """Attention to the pieces so far, then to the source, then a feed-forward block."""

    def __init__(self, size: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size)
        self.attention_to_source = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, past: KeyValues | None, source: KeyValues, mask: Tensor) -> tuple[Tensor, KeyValues]:
        """Return `x` after the layer, and the keys and values of all pieces so far.

        Without a past, `x` is a sentence from its beginning, and a position attends to itself and those before it. Padding
        needs no mask there: it is at the end, to which no real position attends. With a past, `x` is one piece.
        """
        y = self.norms[0](x)
        keys_values = self.attention.remember(y)
        if past is not None:
            keys_values = torch.cat([past[0], keys_values[0]], 2), torch.cat([past[1], keys_values[1]], 2)
        x = x + self.dropout(self.attention(y, keys_values, causal=past is None))
        x = x + self.dropout(self.attention_to_source(self.norms[1](x), source, mask))
        x = x + self.dropout(self.feed_forward(self.norms[2](x)))
        return x, keys_values


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention with several heads."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)

    def remember(self, x: Tensor) -> KeyValues:
        """Return the keys and values of the positions `x`, for others to attend to."""
        return _split(self.key(x)), _split(self.value(x))

    def forward(self, x: Tensor, keys_values: KeyValues, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Return the result of attention from each position of `x` to `keys_values`."""
        attended = F.scaled_dot_product_attention(_split(self.query(x)), *keys_values, attn_mask=mask, is_causal=causal)
        output: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between them, for each position on its own."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, size))


def _split(x: Tensor) -> Tensor:
    """Return `(N, T, size)` as `(N, heads, T, size of a head)`."""
    count, positions, _ = x.shape
    return x.view(count, positions, HEADS, -1).transpose(1, 2)


def sinusoids(first: int, count: int, size: int, device: torch.device) -> Tensor:
    """Return the sine and cosine waves `(count, size)` that encode the positions `first`, `first` + 1, ..."""
    position = torch.arange(first, first + count, device=device, dtype=torch.float32)[:, None]
    rate = 10_000.0 ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    return torch.cat([(position * rate).sin(), (position * rate).cos()], 1)


DECODER_SIZE, DECODER_HIDDEN = 128, 512
DECODER_LAYERS = 4


def decoder(vocabulary: int, width: float) -> "Decoder":
    """Return a model for `vocabulary` tokens, with `width` times 128 features per position."""
    return Decoder(vocabulary, scaled_size(DECODER_SIZE, width), round(DECODER_HIDDEN * width))


class Decoder(nn.Module):
    """A small decoder-only Transformer that predicts the next token at each position. Tokens are int64 `(N, T)`.

    Causal layers, normalised before each block (Radford et al. 2019). Positions are sinusoids, so that sequences may have any
    length. The output layer has a weight of its own, which is a site; tied to the embedding (Press, Wolf 2017) it would not be.
    """

    def __init__(
        self,
        vocabulary: int,
        size: int,
        hidden: int,
        layers: int = DECODER_LAYERS,
        dropout: float = 0.1,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.layers = nn.ModuleList(EncoderLayer(size, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.layers.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for weight in (self.embedding.weight, self.head.weight):
            nn.init.normal_(weight, std=size**-0.5)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores `(N, T, vocabulary)` for the token after each position."""
        size = self.embedding.embedding_dim
        x = self.embedding(tokens) * size**0.5 + sinusoids(0, tokens.shape[1], size, tokens.device)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


@torch.no_grad()
def greedy(model: Transformer, source: Tensor) -> list[list[int]]:
    """Return for each source sentence `(N, T)` the likeliest piece at each step, without marks."""
    state = model.begin(source)
    longest = limits(source)
    token = torch.full_like(longest, BEGIN)
    ended = torch.zeros_like(longest, dtype=torch.bool)
    pieces: list[Tensor] = []
    while not bool(ended.all()):
        scores, state = model.advance(token, state)
        token = _without_marks(scores).argmax(1).masked_fill(ended, PAD)
        pieces.append(token)
        ended = ended | (token == END) | (longest <= len(pieces))
    return [_trim(row) for row in torch.stack(pieces, 1).tolist()]


@torch.no_grad()
def beam_search(model: Transformer, source: Tensor, beam: int, length_penalty: float = 1.0) -> list[list[int]]:
    """Return for each source sentence `(N, T)` the best of `beam` hypotheses, which are extended together.

    Hypotheses are ranked by the sum of their log-probabilities over their length (END counted) to the power of
    `length_penalty`. The search for a sentence ends when its best hypothesis ends.
    """
    if beam < 1:
        raise OptionError(f"the beam is {beam}; it must be 1 (greedy) or more.")
    sentences, device = len(source), source.device
    first = (torch.arange(sentences, device=device) * beam)[:, None]  # the row of a sentence's first hypothesis
    state = model.begin(source).repeat(beam)
    longest = limits(source)[:, None]
    pieces = torch.full((sentences, beam, 1), BEGIN, device=device)
    # All hypotheses are the same before the first piece, so only one of each sentence may be extended.
    total = torch.full((sentences, beam), -torch.inf, device=device)
    total[:, 0] = 0
    length = torch.zeros(sentences, beam, device=device)
    ended = torch.zeros(sentences, beam, dtype=torch.bool, device=device)
    while not bool(ended.all()):
        scores, state = model.advance(pieces[:, :, -1].flatten(), state)
        added = _without_marks(scores).log_softmax(1).view(sentences, beam, -1)
        added[ended] = -torch.inf
        added[..., PAD].masked_fill_(ended, 0.0)  # a hypothesis that has ended continues unchanged
        totals = total[..., None] + added
        lengths = (length + ~ended)[..., None].expand_as(totals)
        ranks = (totals / lengths**length_penalty).flatten(1)
        chosen = ranks.topk(beam, 1).indices
        parent, token = chosen // added.shape[2], chosen % added.shape[2]
        total, length = totals.flatten(1).gather(1, chosen), lengths.flatten(1).gather(1, chosen)
        pieces = torch.cat([pieces.gather(1, parent[..., None].expand_as(pieces)), token[..., None]], 2)
        ended = ended.gather(1, parent) | (token == END) | (longest < pieces.shape[2])
        ended = ended | ended[:, :1]  # topk ranks the best first
        state = state.reorder((first + parent).flatten())
    return [_trim(row) for row in pieces[:, 0, 1:].tolist()]


def limits(source: Tensor) -> Tensor:
    """Return the most pieces `(N,)` that a translation may have, in case the model never predicts END."""
    return 2 * (source != PAD).sum(1) + 10


def _without_marks(scores: Tensor) -> Tensor:
    """Return scores with which PAD and BEGIN are never chosen."""
    return scores.index_fill(1, torch.tensor([PAD, BEGIN], device=scores.device), -torch.inf)


def _trim(pieces: list[int]) -> list[int]:
    return [piece for piece in pieces if piece not in (PAD, END)]


PATCH, VIT_SIZE, VIT_LAYERS = 4, 128, 4


def small_vit(name: str, classes: int, image: tuple[int, int, int], width: float) -> nn.Module:
    """Return a model with `width` times 128 features per patch."""
    size = scaled_size(VIT_SIZE, width)
    return SmallVit(image[0], classes, size)


class SmallVit(nn.Module):
    """A vision transformer: class scores `(N, classes)` for images `(N, channels, height, width)`, cut to whole patches."""

    def __init__(self, channels: int, classes: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, size, PATCH, PATCH)
        self.layers = nn.ModuleList(EncoderLayer(size, 4 * size, dropout=0.0) for _ in range(VIT_LAYERS))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + sinusoids(0, x.shape[1], x.shape[2], x.device)
        everywhere = torch.ones(1, 1, 1, x.shape[1], dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, everywhere)
        scores: Tensor = self.head(self.norm(x).mean(1))
        return scores
