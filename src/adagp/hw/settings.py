"""Settings of an accelerator as a user writes them. The defaults are `Accelerator`'s own.

`simulate` takes them all as options, `sweep` and `pipeline` some of them; the axes of `explore` are some of them as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from adagp.core.options import Option, declared_options, option, switch
from adagp.hw.accelerator import BACKWARD, MOST_ENLARGED, Accelerator, parse_predictor
from adagp.hw.dataflows import OBJECTIVES, check_size, parse_array

PANEL = "Accelerator"
OPTIMIZER_WORDS = {"sgd": 0, "momentum": 1, "adam": 2}
"""Words of state that an optimizer keeps for each weight."""
_OPTIMIZERS = {words: name for name, words in OPTIMIZER_WORDS.items()}
_A_WORD = "as --word-bits"
_USUAL = Accelerator()
_accelerator = partial(option, panel=PANEL)


@dataclass(frozen=True)
class Sets:
    """The field of `Accelerator` that a setting sets, if it has another name, and how the field's value is read."""

    field: str = ""
    read: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class AcceleratorSettings:
    """The options of an accelerator, in the units of the command line."""

    dataflow: Annotated[
        str, _accelerator("Dataflow: ws, os, is or rs (weight, output, input or row stationary), or a plugin's.")
    ] = _USUAL.dataflow
    array: Annotated[
        str, _accelerator("Array of processing elements (PEs), ROWSxCOLUMNS.", also=check_size), Sets(read=parse_array)
    ] = str(_USUAL.array)
    predictor_array: Annotated[
        str,
        _accelerator("Array of the predictor in design max, ROWSxCOLUMNS.", also=check_size),
        Sets(read=parse_array),
    ] = str(_USUAL.predictor_array)
    clock: Annotated[
        float,
        _accelerator("Clock frequency in megahertz.", low=1e-3, high=1e6, allowed="0.001 to 1,000,000 megahertz"),
        Sets("clock_hz", lambda megahertz: megahertz * 1e6),
    ] = _USUAL.clock_hz / 1e6
    word_bits: Annotated[int, _accelerator("Bits of a word: 8, 16 or 32.", low=1)] = _USUAL.word_bits
    buffer: Annotated[
        float,
        _accelerator("Global buffer in kilobytes.", low=1e-3, high=1e9, allowed="0.001 to 1,000,000,000 kilobytes"),
        Sets("buffer_kilobytes"),
    ] = float(_USUAL.buffer_kilobytes)
    bandwidth: Annotated[
        float,
        _accelerator(
            "Off-chip bandwidth in gigabytes per second; inf: no stalls.",
            low=1e-6,
            high=1e9,
            infinite=True,
            allowed="0.000001 to 1,000,000,000 (gigabytes), or inf",
        ),
        Sets(read=lambda gigabytes: gigabytes * 1e9),
    ] = _USUAL.bandwidth / 1e9
    predictor: Annotated[
        str,
        _accelerator("Predictor size, GRIDxCHANNELS: side of its pooled input, channels of its convolution."),
        Sets(read=parse_predictor),
    ] = str(_USUAL.predictor)
    backward: Annotated[
        str,
        _accelerator(
            f"{BACKWARD[0]}: gradients run where the forward pass placed their matrices; {BACKWARD[1]}: as ordinary products."
        ),
    ] = _USUAL.backward
    weight_bits: Annotated[int | None, _accelerator("Bits of a weight.", low=1, unset=_A_WORD)] = None
    activation_bits: Annotated[int | None, _accelerator("Bits of an activation.", low=1, unset=_A_WORD)] = None
    gradient_bits: Annotated[int | None, _accelerator("Bits of a gradient.", low=1, unset=_A_WORD)] = None
    sum_bits: Annotated[
        int | None, _accelerator("Bits of a partial sum.", low=1, unset="32, or --word-bits if that is more")
    ] = None
    buffer_port: Annotated[
        float,
        _accelerator("Bits that the global buffer reads or writes per cycle; inf: no limit.", above=0, infinite=True),
    ] = _USUAL.buffer_port
    accumulator: Annotated[
        float,
        _accelerator("Buffer for partial sums in kilobytes; 0: they use the global buffer.", low=0, high=1e9),
        Sets("accumulator_kilobytes"),
    ] = float(_USUAL.accumulator_kilobytes)
    fusion: Annotated[bool, _accelerator("Fuse element-wise operations with the preceding layer.")] = _USUAL.fusion
    zero_insertion: Annotated[
        bool,
        switch(
            "--zero-insertion",
            "Compute gradients of strided convolutions on zero-inserted inputs, without skipping the zeros.",
            panel=PANEL,
        ),
    ] = _USUAL.zero_insertion
    equal_power_pes: Annotated[
        float,
        _accelerator(
            "PEs of design equal-power relative to --array. The default is the paper's; `adagp rtl power` measures it.",
            low=1,
            high=MOST_ENLARGED,
        ),
    ] = _USUAL.equal_power_pes
    equal_area_pes: Annotated[
        float,
        _accelerator(
            "PEs of design equal-area relative to --array. The default is the paper's; `adagp rtl synthesize` measures it.",
            low=1,
            high=MOST_ENLARGED,
        ),
    ] = _USUAL.equal_area_pes
    optimizer: Annotated[
        str,
        _accelerator(
            "Optimizer whose state is read and written off-chip: sgd, momentum or adam.", choices=tuple(OPTIMIZER_WORDS)
        ),
        Sets("optimizer_words", OPTIMIZER_WORDS.__getitem__),
    ] = _OPTIMIZERS[_USUAL.optimizer_words]
    state_bits: Annotated[
        int | None,
        _accelerator("Bits of each word of the optimizer's state.", low=1, unset="as --weight-bits; with --chips 32"),
    ] = None
    master_bits: Annotated[
        int | None,
        _accelerator(
            "Bits of the optimizer's master copy of the weights.",
            low=1,
            unset="none; with --chips 32 for narrower weights",
        ),
    ] = None
    tiling: Annotated[
        str,
        _accelerator(
            "What the choice of tilings minimises: balanced (traffic, within 2 % of the fewest cycles), latency, "
            "energy or edp.",
            choices=OBJECTIVES,
        ),
    ] = _USUAL.tiling
    vector_lanes: Annotated[
        float,
        _accelerator(
            "Elements per cycle of the vector unit (normalisation, softmax, ...); inf: its work takes no time.",
            above=0,
            infinite=True,
        ),
    ] = _USUAL.vector_lanes
    fused_attention: Annotated[
        bool,
        switch(
            "--fused-attention",
            "Keep attention scores on chip and recompute them in the backward pass.",
            panel=PANEL,
        ),
    ] = _USUAL.fused_attention
    node: Annotated[
        int, _accelerator("Process node of the energy table in nanometres.", low=1), Sets("technology.node")
    ] = _USUAL.technology.node
    cell: Annotated[str, _accelerator("SRAM cells of the energy table: hp or lstp."), Sets("technology.cell")] = (
        _USUAL.technology.cell
    )
    dram: Annotated[
        str,
        _accelerator("DRAM of the energy table: ddr3, ddr4, lpddr4, gddr5, hbm2 or horowitz."),
        Sets("technology.dram"),
    ] = _USUAL.technology.dram
    energy_table: Annotated[
        Path | None, _accelerator("Your own energy table (CSV).", unset="adagp's"), Sets("technology.table", str)
    ] = None


SETTINGS: Mapping[str, Option] = declared_options(AcceleratorSettings)
"""The option of every setting by its name."""


def _all_sets() -> dict[str, Sets]:
    hints = get_type_hints(AcceleratorSettings, include_extras=True)
    stated = {name: [detail for detail in get_args(hints[name]) if isinstance(detail, Sets)] for name in SETTINGS}
    return {
        name: replace(sets[0], field=sets[0].field or name) if sets else Sets(name) for name, sets in stated.items()
    }


_SETS = _all_sets()


def accelerator_field(setting: str) -> str:
    """Return the field of `Accelerator` that a setting sets; none, if there is no setting of the name."""
    return _SETS[setting].field if setting in _SETS else ""


def with_settings(accelerator: Accelerator, settings: Mapping[str, Any]) -> Accelerator:
    """Return `accelerator` with `settings` by the names of their options, as a user writes them."""
    values = {_SETS[name].field: _SETS[name].read(value) for name, value in settings.items()}
    direct = {name: value for name, value in values.items() if "." not in name}
    technology = {name.partition(".")[2]: value for name, value in values.items() if "." in name}
    return replace(accelerator, **direct, technology=replace(accelerator.technology, **technology))
