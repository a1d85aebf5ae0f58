import torch

from adagp.papers.lecture.experiments import _CountedChain


def test_a_chain_of_reversible_blocks_has_autograds_gradient_with_and_without_stored_activations() -> None:
    chain = _CountedChain(blocks=5, size=4)
    x1, x2 = leaves = [torch.tensor(values, requires_grad=True) for values in chain.inputs]
    for first, second in torch.from_numpy(chain.weights):
        x2 = x2 + torch.tanh(first @ x1)
        x1 = x1 + torch.tanh(second @ x2)
    expected = torch.stack(torch.autograd.grad(x1.sum() + x2.sum(), leaves))
    for recompute, kept, evaluated in ((False, 5, 10), (True, 1, 20)):
        torch.testing.assert_close(torch.from_numpy(chain.gradient(recompute)), expected)
        assert (chain.kept, chain.evaluated) == (kept, evaluated)
