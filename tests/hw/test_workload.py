import json
from pathlib import Path

import pytest

from adagp.errors import DataError
from adagp.hw import Attention, Convolution, Elementwise, Linear, Workload, load_workload
from adagp.hw.workload import (
    COPIES,
    NORMALISATIONS,
    POINTWISE,
    SMOOTH,
    SUMS,
    Moved,
    Saved,
    attention_pairs,
    moved_words,
    vector_operations,
    workload_from_json,
)

STRIDED = Convolution("stem", 3, 64, (7, 7), (224, 224), (112, 112), (2, 2), input_gradient=False)
DEPTHWISE = Convolution("depthwise", 32, 32, (3, 3), (16, 16), (16, 16), groups=32)
UP = Convolution("up", 8, 4, (2, 2), (5, 5), (10, 10), (2, 2), transposed=True)
HEAD = Linear("head", 1, 512, 10)
SCORES = Attention("attention", 8, 20, 64, 30)
NORM = Elementwise("norm", "native_batch_norm", 100, 100)
ALL = Workload('all "kinds"', (STRIDED, NORM, DEPTHWISE, UP, SCORES, HEAD))


def test_macs_are_the_textbook_count() -> None:
    assert STRIDED.product(1).macs == 112 * 112 * 64 * 3 * 49
    assert DEPTHWISE.product(1).macs == 16 * 16 * 32 * 9
    assert UP.product(1).macs == 5 * 5 * 8 * 4 * 4
    assert HEAD.product(1).macs == 5120
    assert SCORES.product(1).macs == 8 * 20 * 64 * 30
    assert ALL.macs == sum(layer.product(1).macs for layer in (STRIDED, DEPTHWISE, UP, HEAD, SCORES))


@pytest.mark.parametrize("layer", [STRIDED, DEPTHWISE, UP, HEAD, SCORES], ids=lambda layer: layer.kind)
def test_a_batch_multiplies_the_work(layer: Convolution | Linear | Attention) -> None:
    assert layer.product(6).macs == 6 * layer.product(1).macs


def test_weights_and_activations() -> None:
    assert (STRIDED.weights, STRIDED.input_words, STRIDED.output_words) == (9408, 3 * 224 * 224, 64 * 112 * 112)
    assert (DEPTHWISE.weights, DEPTHWISE.samples) == (288, 32)
    assert ALL.weights == 9408 + 288 + 8 * 4 * 4 + 5120


def test_json_reads_back_equal(tmp_path: Path) -> None:
    ALL.save(tmp_path / "all.json")
    assert load_workload(tmp_path / "all.json") == ALL


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a workload: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        ("[]", 'not a workload: "format" must be "adagp-workload".'),
        ('{"format": "adagp-workload", "version": 9}', "workload of version 9; this program reads versions 1, 2."),
        (
            '{"format": "adagp-workload", "version": 1, "name": "x", "layers": [{"kind": "magic"}]}',
            "layer kind 'magic' is unknown; allowed: convolution, linear, attention, elementwise.",
        ),
        (
            '{"format": "adagp-workload", "version": 1, "name": "x", "layers": [{"kind": "linear", "colour": 1}]}',
            "a linear has no field 'colour'; allowed: groups, in_features, input_gradient, name, out_features, rows, "
            "shared_weights, trainable.",
        ),
        (
            '{"format": "adagp-workload", "version": 1, "name": "x", "layers": [{"kind": "linear", "name": "a"}]}',
            "a linear is incomplete: Linear.__init__() missing 3 required positional arguments: 'rows', 'in_features', "
            "and 'out_features'.",
        ),
    ],
)
def test_rejects_what_is_no_workload(text: str, message: str) -> None:
    with pytest.raises(DataError) as raised:
        workload_from_json(text)
    assert str(raised.value) == message


def test_names_the_file_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(DataError, match=r"^there is no workload file .*x\.json\.$"):
        load_workload(path)
    path.write_text("[]")
    with pytest.raises(DataError, match=r"x\.json: not a workload"):
        load_workload(path)


def layer_text(**values: object) -> str:
    layer = {"kind": "linear", "name": "a", "rows": 1, "in_features": 4, "out_features": 4, **values}
    return json.dumps({"format": "adagp-workload", "version": 1, "name": "x", "layers": [layer]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "adagp-workload", "version": 1}', 'not a workload: it needs a "name" and a list of "layers".'),
        (layer_text(rows=0), "'rows' of a linear is 0; it must be a whole number from 1 to 1e+12."),
        (layer_text(rows=10**13), "'rows' of a linear is 10000000000000; it must be a whole number from 1 to 1e+12."),
        (layer_text(rows="many"), "'rows' of a linear is 'many'; it must be a whole number from 1 to 1e+12."),
        (layer_text(trainable=1), "'trainable' of a linear is 1; it must be true or false."),
        (layer_text(name=None), "'name' of a linear is None; it must be text."),
        (layer_text(shared_weights=17), "layer 'a' shares 17 weights, but has only 16."),
        (layer_text(kind=[]), "layer kind [] is unknown; allowed: convolution, linear, attention, elementwise."),
    ],
)
def test_rejects_damaged_layers(text: str, message: str) -> None:
    with pytest.raises(DataError) as raised:
        workload_from_json(text)
    assert str(raised.value) == message


def test_rejects_damaged_convolutions(tmp_path: Path) -> None:
    text = Workload("x", (DEPTHWISE,)).to_json()
    with pytest.raises(
        DataError, match=r"^'kernel' of a convolution is \(3,\); it must be two whole numbers from 1 to"
    ):
        workload_from_json(text.replace('"kernel": [3, 3]', '"kernel": [3]'))
    with pytest.raises(
        DataError, match=r"^layer 'depthwise' has 32 and 32 channels, which do not divide into 5 groups"
    ):
        workload_from_json(text.replace('"groups": 32', '"groups": 5'))
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"^cannot read the workload '.*x\.json': it is not text\.$"):
        load_workload(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("operation", "words", "moved"),
    [
        ("relu_", (100, 100), Moved()),
        ("add_", (200, 100), Moved(reads=100)),
        ("mul", (101, 100), Moved(reads=1, backward_reads=1)),
        ("product", (200, 100), Moved(100, 100, 200, 100)),
        ("rms_norm", (100, 100), Moved(0, 0, 200, 100)),
        ("cat", (300, 300), Moved()),
        ("gelu", (100, 100), Moved(writes=100, backward_reads=100)),
        ("native_batch_norm", (100, 104), Moved(0, 0, 204, 100)),
        ("max_pool2d_with_indices", (100, 50), Moved(100, 50, 150, 100)),
    ],
)
def test_fused_work_moves_only_what_is_not_on_chip(operation: str, words: tuple[int, int], moved: Moved) -> None:
    work = Elementwise("e", operation, *words)
    assert moved_words(work, fused=True) == moved
    assert moved_words(work, fused=False) == Moved(words[0], words[1], sum(words), words[0])


def test_gradients_of_several_uses_are_added_up() -> None:
    work = Elementwise("e", "gradient_sum", 300, 100)  # three uses: two sums
    assert moved_words(work, fused=True) == Moved(backward_reads=200)
    assert moved_words(work, fused=False) == Moved(backward_reads=400, backward_writes=200)
    assert vector_operations(work) == (0, 200)


@pytest.mark.parametrize(
    ("operation", "words", "operations"),
    [
        ("clone", (100, 100), (0, 0)),
        ("add", (200, 100), (200, 0)),
        ("relu", (100, 100), (100, 100)),
        ("product", (200, 100), (100, 200)),
        ("native_layer_norm", (100, 100), (200, 200)),
        ("_softmax", (100, 100), (300, 200)),
    ],
)
def test_passes_of_a_vector_unit(operation: str, words: tuple[int, int], operations: tuple[int, int]) -> None:
    assert vector_operations(Elementwise("e", operation, *words)) == operations


def test_attention_is_two_products_with_a_softmax_between() -> None:
    scores, use = Attention("a", 4, 10, 8, 10), Attention("a", 4, 10, 10, 8)
    softmax, relu = Elementwise("s", "_softmax", 400, 400), Elementwise("r", "relu", 400, 400)
    assert attention_pairs(Workload("w", (relu, scores, relu, softmax, use, scores, use))) == ((1, 4), (5, 6))
    assert attention_pairs(Workload("w", (scores, relu, use, relu, scores, scores))) == ()


def test_what_autograd_keeps_reads_back_equal() -> None:
    kept = Saved(0, "norm", "native_batch_norm", 100), Saved(0, "mask", "native_dropout", 7, 8, fixed=True)
    workload = Workload("x", (NORM,), kept, 200)
    assert workload_from_json(workload.to_json()) == workload
    assert [tensor.bytes(4, 16) for tensor in kept] == [800, 7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"layer": 0', '"layer": 1'), "a saved tensor belongs to layer 1; there are 1."),
        (
            ('"words": 100', '"words": -1'),
            "'words' of a saved tensor is -1; it must be a whole number from 1 to 1e+12.",
        ),
        (
            ('"fixed": false', '"colour": 1'),
            "a saved tensor has no field 'colour'; allowed: bits, fixed, layer, name, of_site, operation, words.",
        ),
        (
            ('"layer": 0, ', ""),
            "a saved tensor is incomplete: Saved.__init__() missing 1 required positional argument: 'layer'.",
        ),
        (('"parameters": 200', '"parameters": "x"'), "'parameters' is 'x'; it must be a whole number from 0 to 1e+12."),
    ],
)
def test_rejects_damaged_tensors(change: tuple[str, str], message: str) -> None:
    text = Workload("x", (NORM,), (Saved(0, "norm", "native_batch_norm", 100),), 200).to_json()
    with pytest.raises(DataError) as raised:
        workload_from_json(text.replace(*change))
    assert str(raised.value) == message


def test_an_operation_is_of_one_kind() -> None:
    kinds = (COPIES, SUMS, POINTWISE, SMOOTH, NORMALISATIONS)
    assert len(frozenset().union(*kinds)) == sum(map(len, kinds))
