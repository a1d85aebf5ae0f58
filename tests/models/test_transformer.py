"""Masks, sites and the two ways of decoding, each against a slow oracle."""

import pytest
import torch
from torch import Tensor

from adagp.data.translation import fill_up
from adagp.errors import OptionError
from adagp.layers.sites import survey
from adagp.models.registry import BEGIN, END, PAD
from adagp.models.transformer import Decoder, Transformer, beam_search, decoder, greedy, limits, sinusoids, transformer

PIECES = 23


def model(seed: int = 0, spread: float = 1.0) -> Transformer:
    """Return a small model in evaluation mode; `spread` makes its answers more or less certain."""
    torch.manual_seed(seed)
    built = transformer(vocabulary=PIECES, width=1 / 64).eval()
    built.decoder_norm.weight.data.mul_(spread)
    return built


def tokens(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, PIECES, (count, length), generator=torch.Generator().manual_seed(seed))


def test_future_pieces_have_no_influence() -> None:
    source, target = tokens(2, 5), tokens(2, 6, seed=1)
    before = model()(source, target)
    for position in range(1, 6):
        changed = target.clone()
        changed[:, position] = (changed[:, position] - 3 + 1) % (PIECES - 3) + 3
        after = model()(source, changed)
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-6)
        assert not torch.allclose(after[:, position], before[:, position])


def test_padding_has_no_influence() -> None:
    built = model()
    sources, targets = [tokens(1, n, seed=n)[0] for n in (3, 7, 5)], [tokens(1, n, seed=n)[0] for n in (6, 2, 4)]
    together = built(fill_up([one.tolist() for one in sources]), fill_up([one.tolist() for one in targets]))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = built(source[None], target[None])[0]
        torch.testing.assert_close(together[row, : len(target)], alone, rtol=1e-4, atol=1e-5)


def test_every_source_piece_has_influence() -> None:
    source, target = tokens(1, 5), tokens(1, 4, seed=1)
    before = model()(source, target)
    for position in range(5):
        changed = source.clone()
        changed[:, position] = (changed[:, position] - 3 + 1) % (PIECES - 3) + 3
        assert not torch.allclose(model()(changed, target), before)


def test_word_order_matters() -> None:
    source, target = tokens(1, 5), tokens(1, 4, seed=1)
    assert not torch.allclose(model()(source.flip(1), target), model()(source, target))


def test_sites_are_projections_and_feed_forward_layers() -> None:
    found = survey(model())
    names = {site.name for site in found.sites}
    projections = ("query", "key", "value", "out")
    expected = {f"{side}.{n}.feed_forward.{k}" for side in ("encoder", "decoder") for n in range(3) for k in (0, 2)}
    expected |= {f"{side}.{n}.attention.{p}" for side in ("encoder", "decoder") for n in range(3) for p in projections}
    expected |= {f"decoder.{n}.attention_to_source.{p}" for n in range(3) for p in projections}
    assert names == expected
    assert len(names) == 48
    assert {one.reason for one in found.rest} == {"no rule for layer type Embedding", "bias", "normalisation"}


def test_every_site_is_called_once_a_batch() -> None:
    built = model()
    calls: dict[str, int] = {}
    for site in survey(built).sites:
        site.module.register_forward_hook(lambda *_, name=site.name: calls.update({name: calls.get(name, 0) + 1}))
    built(tokens(2, 5), tokens(2, 4))
    assert set(calls.values()) == {1}
    assert len(calls) == 48


def test_base_size_on_the_meta_device() -> None:
    with torch.device("meta"):
        built = transformer(vocabulary=8000, width=1)
        assert built(torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64)).shape == (2, 7, 8000)
    attention, norm, feed_forward = 4 * (512 * 512 + 512), 2 * 512, 2 * 512 * 2048 + 2048 + 512
    layers = 3 * (attention + feed_forward + 2 * norm) + 3 * (2 * attention + feed_forward + 3 * norm)
    assert sum(one.numel() for one in built.parameters()) == 8000 * 512 + layers + 2 * norm


@pytest.mark.parametrize(("width", "near"), [(0.3, "0.296875 or 0.3125"), (0.001, "0.015625 or 0.03125")])
def test_widths_that_leave_no_whole_heads(width: float, near: str) -> None:
    with pytest.raises(OptionError) as error:
        transformer(vocabulary=PIECES, width=width)
    assert str(error.value) == (
        f"width {width} does not divide into 8 attention heads; choose a multiple of 1/64, such as {near}."
    )


def test_sinusoids_go_on_where_they_stopped() -> None:
    whole = sinusoids(0, 9, 16, torch.device("cpu"))
    torch.testing.assert_close(sinusoids(4, 5, 16, torch.device("cpu")), whole[4:])
    assert len({tuple(row) for row in whole.tolist()}) == 9


def padded_source() -> Tensor:
    return fill_up([[*tokens(1, n, seed=n)[0].tolist(), END] for n in (4, 1, 6, 3, 2)])


def test_decoding_in_steps_equals_the_whole_at_once() -> None:
    built = model()
    source, target = padded_source(), tokens(5, 6, seed=9)
    whole = built(source, target)
    state = built.begin(source)
    for position in range(6):
        scores, state = built.advance(target[:, position], state)
        torch.testing.assert_close(scores, whole[:, position], rtol=1e-4, atol=1e-5)
    assert state.position == 6


def slow_log_probabilities(built: Transformer, source: Tensor, pieces: list[int]) -> Tensor:
    scores: Tensor = built(source[None], torch.tensor([[BEGIN, *pieces]]))[0, -1]
    scores[[PAD, BEGIN]] = -torch.inf
    return scores.log_softmax(0)


def slow_beam(built: Transformer, source: Tensor, beam: int) -> list[int]:
    """Decode one sentence without cache or batch, hypothesis by hypothesis."""
    source = source[source != PAD]
    hypotheses: list[tuple[list[int], float, bool]] = [([], 0.0, False)]
    for _ in range(2 * len(source) + 10):
        grown = []
        for pieces, total, ended in hypotheses:
            if ended:
                grown.append((pieces, total, True))
                continue
            answers = slow_log_probabilities(built, source, pieces).tolist()
            grown += [([*pieces, piece], total + answer, piece == END) for piece, answer in enumerate(answers)]
        grown.sort(key=lambda one: -one[1] / len(one[0]))
        hypotheses = grown[:beam]
        if hypotheses[0][2]:
            break
    return [piece for piece in hypotheses[0][0] if piece != END]


def slow_greedy(built: Transformer, source: Tensor) -> list[int]:
    source = source[source != PAD]
    pieces: list[int] = []
    for _ in range(2 * len(source) + 10):
        piece = int(slow_log_probabilities(built, source, pieces).argmax())
        if piece == END:
            break
        pieces.append(piece)
    return pieces


@pytest.fixture(params=range(4))
def talker(request: pytest.FixtureRequest) -> Transformer:
    """Return a model that ends some sentences early, some late and some never."""
    built = model(seed=request.param, spread=3.0)
    built.embedding.weight.data[END] *= 1.5
    return built


def test_greedy_equals_the_slow_way(talker: Transformer) -> None:
    source = padded_source()
    with torch.no_grad():
        assert greedy(talker, source) == [slow_greedy(talker, one) for one in source]


@pytest.mark.medium
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_beam_search_equals_the_slow_way(talker: Transformer, beam: int) -> None:
    source = padded_source()
    with torch.no_grad():
        assert beam_search(talker, source, beam) == [slow_beam(talker, one, beam) for one in source]


def test_a_beam_of_one_is_greedy(talker: Transformer) -> None:
    assert beam_search(talker, padded_source(), 1) == greedy(talker, padded_source())


def test_talkers_end_in_different_ways() -> None:
    """The oracles above are compared on sentences that end by themselves and on some that are cut off."""
    lengths, longest = [], limits(padded_source()).tolist()
    for seed in range(4):
        built = model(seed, spread=3.0)
        built.embedding.weight.data[END] *= 1.5
        lengths += [len(one) - most for one, most in zip(greedy(built, padded_source()), longest, strict=True)]
    assert max(lengths) == 0
    assert min(lengths) < 0


def test_limits_follow_the_source() -> None:
    assert limits(torch.tensor([[5, 6, END], [5, END, PAD]])).tolist() == [16, 14]


def test_an_empty_beam() -> None:
    with pytest.raises(OptionError) as error:
        beam_search(model(), padded_source(), 0)
    assert str(error.value) == "the beam is 0; it must be 1 (greedy) or more."


def test_no_position_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = decoder(11, 0.125).eval()
    tokens = torch.randint(11, (3, 9))
    scores = model(tokens)
    assert scores.shape == (3, 9, 11)
    for place in range(9):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 11
        again = model(changed)
        assert torch.equal(again[:, :place], scores[:, :place])
        assert not torch.allclose(again[:, place:], scores[:, place:])
        torch.testing.assert_close(model(tokens[:, : place + 1]), scores[:, : place + 1])


def test_positions_are_told_apart() -> None:
    torch.manual_seed(0)
    scores = decoder(11, 0.125).eval()(torch.full((1, 5), 3))
    assert len({tuple(row) for row in scores[0].tolist()}) == 5


def test_all_linear_layers_are_sites_but_a_tied_head() -> None:
    names = [site.name for site in survey(Decoder(11, 8, 16, layers=2)).sites]
    assert len(names) == 2 * 6 + 1
    assert names[-1] == "head"
    tied = Decoder(11, 8, 16, layers=2, tied=True)
    assert tied.head.weight is tied.embedding.weight
    assert [site.name for site in survey(tied).sites] == names[:-1]


def test_a_width_that_does_not_divide_into_heads() -> None:
    message = "^width 0.1 does not divide into 8 attention heads; choose a multiple of 1/16, such as 0.0625 or 0.125.$"
    with pytest.raises(OptionError, match=message):
        decoder(256, 0.1)
