"""The paper's two models that are no classifiers, as shapes for the accelerator: YOLO-v3 and a small Transformer."""

from adagp.hw import Attention, Convolution, Elementwise, Layer, Linear, Workload

ANCHORS = 3


def yolo_v3(classes: int = 20, pixels: int = 416) -> Workload:
    """Return YOLO-v3 (Redmon, Farhadi 2018): Darknet-53 and three detection heads; 20 classes are Pascal VOC's."""
    layers: list[Layer] = []

    def add(inputs: int, outputs: int, kernel: int, side: int, stride: int = 1) -> int:
        out = side // stride
        stem = not layers
        layers.append(
            Convolution(
                f"conv{len(layers)}",
                inputs,
                outputs,
                (kernel, kernel),
                (side, side),
                (out, out),
                (stride, stride),
                input_gradient=not stem,
            )
        )
        words = outputs * out * out
        layers.append(Elementwise(f"norm{len(layers)}", "batch_norm and leaky_relu", 2 * words, 2 * words))
        return out

    side = add(3, 32, 3, pixels)
    channels = 32
    for blocks in (1, 2, 8, 8, 4):
        side = add(channels, 2 * channels, 3, side, stride=2)
        channels *= 2
        for _ in range(blocks):
            add(channels, channels // 2, 1, side)
            add(channels // 2, channels, 3, side)
    # Heads at strides 32, 16 and 8; after each but the last, a 1x1 convolution, upsampling and a shortcut from below.
    inputs = channels
    for width in (512, 256, 128):
        for index in range(3):
            add(inputs if index == 0 else 2 * width, width, 1, side)
            if index < 2:
                add(width, 2 * width, 3, side)
        add(width, 2 * width, 3, side)
        add(2 * width, ANCHORS * (5 + classes), 1, side)
        if width > 128:
            add(width, width // 2, 1, side)
            side *= 2
            inputs = width // 2 + width
    return Workload("yolo_v3", tuple(layers))


def transformer(
    width: int = 512, hidden: int = 512, heads: int = 8, depth: int = 3, length: int = 20, words: int = 10_000
) -> Workload:
    """Return an encoder-decoder Transformer of `depth` + `depth` layers for sentences of `length` tokens."""
    layers: list[Layer] = []

    def linear(name: str, inputs: int, outputs: int) -> None:
        layers.append(Linear(name, length, inputs, outputs))

    def attention(name: str) -> None:
        for part in ("query", "key", "value"):
            linear(f"{name}.{part}", width, width)
        layers.append(Attention(f"{name}.scores", heads, length, width // heads, length))
        layers.append(Elementwise(f"{name}.softmax", "softmax", heads * length**2, heads * length**2))
        layers.append(Attention(f"{name}.mix", heads, length, length, width // heads))
        linear(f"{name}.out", width, width)
        norm(name)

    def norm(name: str) -> None:
        layers.append(Elementwise(f"{name}.norm", "add and layer_norm", 3 * length * width, 2 * length * width))

    for side, attentions in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        for number in range(depth):
            for kind in attentions:
                attention(f"{side}.{number}.{kind}")
            linear(f"{side}.{number}.feed.0", width, hidden)
            linear(f"{side}.{number}.feed.1", hidden, width)
            norm(f"{side}.{number}.feed")
    linear("generator", width, words)
    return Workload("transformer", tuple(layers))
