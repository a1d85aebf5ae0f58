"""Data parallel: every process trains on its share of each batch, with a copy of the model (DDP) or a shard of it (FSDP2).

With DDP, in a BP batch DDP averages the gradients. After the forward (and backward) pass of every batch, the running
statistics of normalisation layers, the loss, and the processes' requests to stop or save are averaged; and the engine sums
what sources have seen of the sites (`Source.join`: pooled summaries of outputs, for instance), from which every process then
produces, or learns to produce, the same gradients. So a GP batch sends these instead of gradients, and all copies stay equal
bit by bit.

With FSDP2 (`fully_shard`), the weights of one block after the other are gathered for the passes through it. A BP batch
reduces the gradients, of which each process keeps its shard; a GP batch gathers weights for the forward pass only and
reduces no gradients: each process predicts the rows of its shard, from the summaries of all processes.

If the loss is a mean over items of which shares have different numbers (word pieces, objects), each process's loss is
weighted by its number of items, which is summed while the forward pass runs: the gradient is that of the whole batch.

Normalisation layers use the statistics of the process's own share, as in DDP. Their running statistics, used in evaluation,
are the means over the processes; the variance between the shares' means is not in them.
"""

import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from adagp.core.plan import BACKPROP
from adagp.data.batches import Share
from adagp.engine.batch import Batch, BatchResult
from adagp.engine.hooks import call
from adagp.layers.eval_mode import evaluation_mode
from adagp.program.distributed.loop import ParallelLoop
from adagp.program.distributed.processes import digest
from adagp.program.train.loop import Loop, Observer


class DataLoop(ParallelLoop):
    """The loop of a data parallel run."""

    joint_loss = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.trainer.setup.processes.on_exchange = self._exchanging
        self._wrapped = self._wrap(self.trainer.model)
        self._buffers = [buffer for buffer in self.trainer.model.buffers() if buffer.is_floating_point()]

    def _wrap(self, model: nn.Module) -> nn.Module:
        """Return the module to call instead of the model in batches in which every parameter gets a gradient by backprop."""
        accepted = inspect.signature(DistributedDataParallel).parameters
        # The option has another name before torch 2.13.
        name = "forward_sync_buffers" if "forward_sync_buffers" in accepted else "broadcast_buffers"
        options: dict[str, Any] = {name: False}  # buffers are averaged in `_step`
        wrapped = DistributedDataParallel(model, **options)
        wrapped.register_comm_hook(None, self._average_bucket)
        return wrapped

    @contextmanager
    def _exchanging(self, amount: int) -> Iterator[None]:
        self.world.count("summaries", amount)
        with self.world.waiting():
            yield

    def close(self) -> None:
        """Free DDP before the process group: else it would wait for threads that wait for the GIL."""
        del self._wrapped

    def _read(self, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        return self.task.shares(epoch, start, Share(self.world.rank, self.world.size))

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        super()._train(inputs, targets, before, observer)
        self.check_copies(self._copies)

    def _step(self, inputs: Any, targets: Any) -> BatchResult:
        """Train on this process's share; loss, buffers and requests are averaged before the sources produce gradients."""
        with self.trainer.batch(targets) as batch:
            self.world.phase = str(batch.phase)
            if batch.skipped:
                self.world.all_reduce([self.make_requests()], "requests")
                return BatchResult(batch.phase, torch.full((), torch.nan), None, guarded=False, skipped=True)
            plan = batch.plan
            whole = not plan.hold_rest and plan.default == BACKPROP and not plan.by_site
            weight = self._weigh(targets)
            output = call(self._wrapped if whole else self.trainer.model, inputs)
            loss = self.task.loss(output, targets) * weight()
            batch.differentiate(loss)
            self._average_gradients(batch, whole=whole)
            joint = loss.detach().clone()
            self.world.average([*self._buffers, self.make_requests(), joint], "statistics")
            batch.complete()
            batch.step()
        return BatchResult(batch.phase, joint, output, batch.guarded)

    def _weigh(self, targets: Any) -> Callable[[], Any]:
        """Begin to sum the items of the loss over the processes; return a function for the weight of this process's loss."""
        items = self.task.weight(targets)
        if items is None:
            return lambda: 1.0
        total = torch.tensor(float(items), device=self.device)
        self.world.count("weights", total.element_size())
        reduction = dist.all_reduce(total, async_op=True)

        def weight() -> Tensor:
            with self.world.waiting():
                reduction.wait()
            return max(1, items) * self.world.size / total.clamp(min=1)

        return weight

    def _average_bucket(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # missing in stubs; DDP looks at the annotation
    ) -> Future[Tensor]:
        """Average a bucket of gradients during DDP's backward pass; the time after the last bucket counts as waiting."""
        buffer = bucket.buffer().div_(self.world.size)
        self.world.count("gradients", buffer.numel() * buffer.element_size())
        done = dist.all_reduce(buffer, async_op=True).get_future()
        last, start, phase = bucket.is_last(), time.perf_counter(), self.world.phase

        def finished(future: Future[list[Tensor]]) -> Tensor:
            if last:
                self.world.waited[phase] += time.perf_counter() - start
            return future.value()[0]

        averaged: Future[Tensor] = done.then(finished)
        return averaged

    def _average_gradients(self, batch: Batch, *, whole: bool) -> None:
        """Average the gradients, unless DDP has done so in a backward pass through the whole model."""
        if not whole and batch.needs_backward:
            parameters = self.trainer.model.parameters()
            self.world.average([parameter.grad for parameter in parameters if parameter.grad is not None], "gradients")

    def _copies(self) -> dict[str, str]:
        return {"the model and its predictor": digest([*self.trainer.model.state_dict().values(), *self._replicated()])}

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self._reduce_meter(1 / self.world.size)
        return super()._end_epoch(epoch)


MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq")
"""Optimizer states with the shape of the parameter."""


def shard_model(model: nn.Module, inputs: Any) -> nn.Module:
    """Shard a model in place over all processes, block by block, and return it; `inputs` are for a trial forward pass."""
    for block in whole_blocks(model, inputs):
        fully_shard(block)
    fully_shard(model)
    return model


def whole_blocks(model: nn.Module, inputs: Any) -> list[nn.Module]:
    """Return the blocks whose layers are called only inside a call of the block, which gathers their weights.

    If a model calls a layer of a block directly, the layer would have sharded weights; such blocks are gathered with the model.
    """
    candidates, running, bypassed = list(blocks(model)), Counter[nn.Module](), set[nn.Module]()
    with ExitStack() as stack:
        for block in candidates:

            def begin(module: nn.Module, _: Any, block: nn.Module = block) -> None:
                running[block] += module is block
                if not running[block]:
                    bypassed.add(block)

            def end(module: nn.Module, *_: Any) -> None:
                running[module] -= 1

            for layer in block.modules():
                stack.enter_context(layer.register_forward_pre_hook(begin))
            stack.enter_context(block.register_forward_hook(end))
        with evaluation_mode(model), torch.no_grad():
            call(model, inputs)
    return [block for block in candidates if block not in bypassed]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules to gather one by one: the outermost elements of sequences and lists that have parameters."""
    lists = nn.Sequential | nn.ModuleList
    for child in model.children():
        if isinstance(model, lists) and not isinstance(child, lists) and any(True for _ in child.parameters()):
            yield child
        else:
            yield from blocks(child)


def whole_weights(model: nn.Module) -> dict[str, Any]:
    """Return the full state_dict, in CPU memory, in the first process; an empty one in the others. All must call this."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


class FsdpLoop(DataLoop):
    """The loop of a fully sharded run, of a model that was passed to `shard_model`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        parameters = list(self.trainer.model.parameters())
        self._shard_bytes = sum(weight.to_local().nbytes for weight in parameters if isinstance(weight, DTensor))
        self._whole_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)

    def _wrap(self, model: nn.Module) -> nn.Module:
        return model

    def close(self) -> None:
        """Nothing of FSDP2's outlives the process group."""

    def _average_gradients(self, batch: Batch, *, whole: bool) -> None:
        """Count the bytes of FSDP2: of shards of weights for each pass, of gradients in a backward pass."""
        self.world.count("weights", self._shard_bytes * (2 if batch.needs_backward else 1))
        if batch.needs_backward:
            self.world.count("gradients", self._whole_bytes)

    def shards(self) -> Mapping[str, Tensor]:
        """Return the parameters, and the tensors that the optimizer may keep for each."""
        shards: dict[str, Tensor] = {}
        for index, (name, parameter) in enumerate(self.trainer.model.named_parameters()):
            shards[f"common/model/{name}"] = parameter.detach()
            shards |= {f"common/optimizer/state/{index}/{moment}": parameter.detach() for moment in MOMENTS}
        return shards

    def _evaluate(self) -> dict[str, float]:
        """Evaluate in all processes together, as none has the whole model."""
        return Loop._evaluate(self)

    def _copies(self) -> dict[str, str]:
        return {"the predictor": digest(self._replicated())}
