"""Fully sharded: each process holds a part of every weight and of its optimizer's state, and trains on its share of a batch.

FSDP2 (`fully_shard`) gathers the weights of one block after the other for the passes through it. A BP batch adds up the
gradients, of which each process keeps its part; a GP batch gathers weights for the forward pass alone and adds up no gradients:
each process predicts the rows that it holds, from the summaries of all.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from adagp.engine.batch import Batch
from adagp.engine.hooks import call
from adagp.layers.eval_mode import evaluation_mode
from adagp.program.distributed.data_parallel import DataLoop
from adagp.program.distributed.processes import digest
from adagp.program.train.loop import Loop

MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq")
"""What optimizers keep of each parameter in its own shape."""


def spread_model(model: nn.Module, inputs: Any) -> nn.Module:
    """Shard a model in place over all processes, block by block, and return it. `inputs` are tried out before."""
    for block in whole_blocks(model, inputs):
        fully_shard(block)
    fully_shard(model)
    return model


def whole_blocks(model: nn.Module, inputs: Any) -> list[nn.Module]:
    """Return the blocks whose layers are called inside a call of the block alone: then their weights are gathered.

    What a model calls of a block by itself would find its weights in parts; such blocks are gathered with the model.
    """
    candidates, running, strays = list(blocks(model)), Counter[nn.Module](), set[nn.Module]()
    with ExitStack() as stack:
        for block in candidates:

            def begin(module: nn.Module, _: Any, block: nn.Module = block) -> None:
                running[block] += module is block
                if not running[block]:
                    strays.add(block)

            def end(module: nn.Module, *_: Any) -> None:
                running[module] -= 1

            for layer in block.modules():
                stack.enter_context(layer.register_forward_pre_hook(begin))
            stack.enter_context(block.register_forward_hook(end))
        with evaluation_mode(model), torch.no_grad():
            call(model, inputs)
    return [block for block in candidates if block not in strays]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that are gathered at a time: outermost elements of sequences and lists that have parameters."""
    lists = nn.Sequential | nn.ModuleList
    for child in model.children():
        if isinstance(model, lists) and not isinstance(child, lists) and any(True for _ in child.parameters()):
            yield child
        else:
            yield from blocks(child)


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """Return the whole state_dict, in memory, in the first process; nothing in the others. All must call this together."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


class FsdpLoop(DataLoop):
    """The loop of a fully sharded run, of a model that is `spread_model`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        parameters = list(self.trainer.model.parameters())
        self._held_bytes = sum(one.to_local().nbytes for one in parameters if isinstance(one, DTensor))
        self._whole_bytes = sum(one.numel() * one.element_size() for one in parameters)

    def _wrap(self, model: nn.Module) -> nn.Module:
        return model

    def close(self) -> None:
        """Nothing of FSDP2's outlives the process group."""

    def _average_gradients(self, batch: Batch, *, whole: bool) -> None:
        """Count what FSDP2 has exchanged: parts of weights, for each pass, and of gradients in a backward pass."""
        self.world.count("weights", self._held_bytes * (2 if batch.needs_backward else 1))
        if batch.needs_backward:
            self.world.count("gradients", self._whole_bytes)

    def shards(self) -> Mapping[str, Tensor]:
        """Return the parameters, and what the optimizer may keep of each."""
        found: dict[str, Tensor] = {}
        for place, (name, one) in enumerate(self.trainer.model.named_parameters()):
            found[f"common/model/{name}"] = one.detach()
            found |= {f"common/optimizer/state/{place}/{moment}": one.detach() for moment in MOMENTS}
        return found

    def _evaluate(self) -> dict[str, float]:
        """Evaluate in all processes together, as no one has the whole model."""
        return Loop._evaluate(self)

    def _copies(self) -> dict[str, str]:
        return {"the predictor": digest(self._replicated())}
