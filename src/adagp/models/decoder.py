"""A small decoder-only Transformer, which says the next token at each position of a text.

The layers are those of `adagp.models.transformer`, without a mask and thereby causal: normalised before each block
(Radford et al. 2019). Sinusoids tell the positions apart, so that sequences may have any length. The answer has a weight of
its own, which is a site like every other linear layer; tied to the embedding (Press, Wolf 2017) it would be none.
"""

from torch import Tensor, nn

from adagp.models.transformer import EncoderLayer, scaled_size, sinusoids

SIZE, HIDDEN = 128, 512
LAYERS = 4


def decoder(vocabulary: int, width: float) -> "Decoder":
    """Return a model for `vocabulary` tokens, with `width` times 128 features a position."""
    return Decoder(vocabulary, scaled_size(SIZE, width), round(HIDDEN * width))


class Decoder(nn.Module):
    """Says at each position of a text which token comes next. Tokens are int64 `(N, T)`."""

    def __init__(
        self,
        vocabulary: int,
        size: int,
        hidden: int,
        layers: int = LAYERS,
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
