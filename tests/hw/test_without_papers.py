"""The accelerator model without any paper: a design, a cost function and a source of a plug-in's own are enough."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys


class NoPapers:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("adagp.papers."):
            raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, NoPapers())

from adagp.core.methods import AcceleratorWork, Method, add_method
from adagp.core.plan import BACKPROP_ALL, Phase, Plan
from adagp.hw import DESIGNS, Accelerator, Cost, Design, Linear, Run, Workload, simulate
from adagp.hw.simulate import run_in_sequence, standard_designs
from adagp.pipe.modelled import modelled_costs

assert standard_designs() == ("baseline",), standard_designs()


def half_gradient(site):
    return Cost(cycles=site.batch, macs=1)


sys.modules["plugin"] = sys.modules["__main__"]
add_method(Method("own", "a plug-in", "plugin:Source", accelerator=AcceleratorWork("plugin:half_gradient")))
DESIGNS.add("own", Design(run_in_sequence, predictor_memory=False))
net = Workload("net", (Linear("first", 1, 64, 32, input_gradient=False), Linear("last", 1, 32, 10)))
counts = ((BACKPROP_ALL, 1), (Plan(Phase.GP, default="own", hold_rest=True), 2))
result = simulate(net, Accelerator(), Run(8, counts, False), ("own",))
assert result.speedup("own") > 1, result.speedup("own")
assert modelled_costs(net, Accelerator(), 2, 4, design="own", source="own").stages[0].update_gp > 0
assert not [name for name in sys.modules if name.startswith("adagp.papers.")]
print("simulated")
"""


@pytest.mark.medium
def test_the_model_simulates_a_plug_in_without_papers() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("simulated\n", "")
