import pytest
import torch

from adagp.errors import OptionError
from adagp.layers.sites import survey
from adagp.models.decoder import Decoder, decoder


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
