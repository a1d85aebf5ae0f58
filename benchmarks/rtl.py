"""The cycle model against hardware: products drawn at random, on a simulated chip."""

import numpy as np

from adagp.hw.dataflows import Array
from adagp.rtl.blueprint import make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.mapping import OPERATIONS, PLACEMENTS, find_mapping
from adagp.rtl.products import draw_matrices, model_cost, run_product
from adagp.rtl.simulation import simulate_chip
from benchmarks.measure import Ratio


def cycles_against_model(products: int = 200) -> Ratio:
    """Return the share of products, over three dataflows and three operations, whose cycles or accesses are not the model's."""
    rng = np.random.default_rng(0)
    blueprint = make_blueprint(
        "baseline", Array(4, 5), FORMATS["int16"], value_words=1024, sum_words=1024, program_words=4
    )
    wrong = cycles = 0
    with simulate_chip(blueprint) as chip:
        for place in range(products):
            dataflow, operation = list(PLACEMENTS)[place % 3], list(OPERATIONS)[place // 3 % 3]
            sizes = [int(size) for size in rng.integers(1, 40, 3)]
            mapping = find_mapping(dataflow, operation, *sizes)
            matrices = draw_matrices(blueprint.core.single, sizes, place)
            del matrices[mapping.result]
            _, counts = run_product(chip, mapping, matrices)
            cost = model_cost(blueprint.core, dataflow, operation, *sizes)
            found = (counts.cycles, counts.span, counts.reads, counts.writes)
            wrong += found != (cost.cycles, cost.cycles, cost.buffer_reads, cost.buffer_writes)
            cycles += counts.cycles
    detail = f"{products} products, {cycles:,} cycles"
    return Ratio("products whose cycles or accesses in hardware are not the model's", wrong / products, 0.0, detail)
