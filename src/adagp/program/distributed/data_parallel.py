"""Data parallel: every process has the whole model and trains on its share of each batch.

In a BP batch DDP averages the gradients. Besides, after every batch's forward (and backward), the running statistics of
normalisation layers, the loss, and the processes' requests to stop or save are averaged; and the engine adds up what sources
have seen of the sites (`Source.join`: pooled summaries of outputs, for instance), from which every process then produces, or
learns to produce, the same gradients. So a GP batch sends these instead of the gradients, and all copies stay equal bit by bit.

Where the loss is a mean over things of which shares have more or fewer (word pieces, objects), each process's loss counts
by their number, which is added up while the forward pass runs: the gradient is that of the joined batch.

Normalisation layers use the statistics of the process's own share, as DDP has it. Their running statistics, used in
evaluation, are the processes' means; the variance between the shares' means is not in them.
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
        """Return what is called in the place of the model where a backward pass brings every parameter its gradient."""
        known = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.13
        without: dict[str, Any] = {name: False}  # buffers are averaged with the summaries
        wrapped = DistributedDataParallel(model, **without)
        wrapped.register_comm_hook(None, self._average_bucket)
        return wrapped

    @contextmanager
    def _exchanging(self, amount: int) -> Iterator[None]:
        self.world.count("summaries", amount)
        with self.world.waiting():
            yield

    def close(self) -> None:
        """Free DDP: if the process group went first, DDP would wait for threads that wait for Python's lock."""
        del self._wrapped

    def _read(self, epoch: int, start: int) -> Iterator[tuple[Any, Any]]:
        return self.task.shares(epoch, start, Share(self.world.rank, self.world.size))

    def _train(self, inputs: Any, targets: Any, before: float, observer: Observer) -> None:
        super()._train(inputs, targets, before, observer)
        self.check_copies(self._copies)

    def _step(self, inputs: Any, targets: Any) -> BatchResult:
        """Train on this process's share; what the processes have seen is averaged before sources look at it."""
        with self.trainer.batch(targets) as batch:
            self.world.phase = str(batch.phase)
            if batch.skipped:
                self.world.add_up([self.make_requests()], "requests")
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
        """Begin to add up what the loss is a mean of; return a function that says what this process's loss counts."""
        own = self.task.weight(targets)
        if own is None:
            return lambda: 1.0
        total = torch.tensor(float(own), device=self.device)
        self.world.count("weights", total.element_size())
        adding = dist.all_reduce(total, async_op=True)

        def weight() -> Tensor:
            with self.world.waiting():
                adding.wait()
            return max(1, own) * self.world.size / total.clamp(min=1)

        return weight

    def _average_bucket(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # missing in stubs; DDP looks at the annotation
    ) -> Future[Tensor]:
        """Average some gradients while DDP's backward pass goes on; after the last of them, it waits."""
        buffer = bucket.buffer().div_(self.world.size)
        self.world.count("gradients", buffer.numel() * buffer.element_size())
        done = dist.all_reduce(buffer, async_op=True).get_future()
        last, start, phase = bucket.is_last(), time.perf_counter(), self.world.phase

        def finished(future: Future[list[Tensor]]) -> Tensor:
            if last:
                self.world.waited[phase] += time.perf_counter() - start
            return future.value()[0]

        answer: Future[Tensor] = done.then(finished)
        return answer

    def _average_gradients(self, batch: Batch, *, whole: bool) -> None:
        """Average the gradients, unless DDP has done so in a backward pass through the whole model."""
        if not whole and batch.needs_backward:
            parameters = self.trainer.model.parameters()
            self.world.average([one.grad for one in parameters if one.grad is not None], "gradients")

    def _copies(self) -> dict[str, str]:
        return {"the model and its predictor": digest([*self.trainer.model.state_dict().values(), *self._replicated()])}

    def _end_epoch(self, epoch: int) -> dict[str, Any]:
        self._reduce_meter(1 / self.world.size)
        return super()._end_epoch(epoch)


# Fully sharded.


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
