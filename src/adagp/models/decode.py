"""Finding a translation with a trained model: greedily, or by beam search. Both are batched and never compute a key twice."""

import torch
from torch import Tensor

from adagp.errors import OptionError
from adagp.models.tokens import BEGIN, END, PAD
from adagp.models.transformer import Transformer


@torch.no_grad()
def greedy(model: Transformer, source: Tensor) -> list[list[int]]:
    """Return for each source sentence `(N, T)` the pieces that were likeliest one after the other, without marks."""
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
    """Return for each source sentence `(N, T)` the best of `beam` hypotheses, which are prolonged together.

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
    # All hypotheses are the same before the first piece: only one of each sentence counts.
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
    """Return the most pieces `(N,)` that a translation may have, for a model that finds no end."""
    return 2 * (source != PAD).sum(1) + 10


def _without_marks(scores: Tensor) -> Tensor:
    """Return scores with which neither padding nor a beginning is ever chosen."""
    return scores.index_fill(1, torch.tensor([PAD, BEGIN], device=scores.device), -torch.inf)


def _trim(pieces: list[int]) -> list[int]:
    return [piece for piece in pieces if piece not in (PAD, END)]
