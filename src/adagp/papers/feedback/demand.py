"""The memory and the work of feedback, counted from the sizes of a trial forward pass."""

from collections.abc import Sequence

from adagp.papers.feedback.pooling import KeptMaps, kept_bytes, largest_side
from adagp.sources.demand import NUMBER_BYTES, Demand, TrialCall


def feedback_demand(
    calls: Sequence[TrialCall], features: int, limit: float, learned: float, corrected: float
) -> Demand:
    """Return what feedback takes with K `features`; `learned` and `corrected` are the shares of BP batches that update it.

    A BP batch sums K + 1 weighted rows of output gradients and of inputs. A GP batch keeps the inputs until the error is there,
    mixes K + 1 of them, and takes the weight gradient of K + 2 rows in place of all.
    """
    maps = [KeptMaps(call.site, call.output, call.inputs if corrected else None) for call in calls]
    unique = list({kept.site: kept for kept in maps}.values())
    side = largest_side(unique, features, limit)
    outputs = [kept.output_numbers(side) for kept in maps]
    inputs = [kept.input_numbers(side) for kept in maps]
    whole = [call.inputs.numel() // call.rows for call in calls]
    rows = [call.rows for call in calls]
    learning = sum(count * number for count, number in zip(rows, outputs, strict=True))
    correcting = sum(count * number for count, number in zip(rows, inputs, strict=True))
    mixing = sum(call.inputs.numel() for call in calls)
    gradients = sum(call.macs // call.rows for call in calls)
    return Demand(
        state=kept_bytes(unique, features, side),
        bp_bytes=NUMBER_BYTES * (features + 1) * (sum(outputs) + sum(inputs)),
        gp_bytes=NUMBER_BYTES * (mixing + (features + 2) * sum(whole)),
        bp_macs=round((features + 1) * (learned * learning + corrected * correcting)),
        gp_macs=(features + 1) * mixing + (features + 2) * gradients,
    )
