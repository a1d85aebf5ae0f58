"""Damage to files, drawn by hypothesis: to their bytes, or to a JSON document somewhere inside."""

from typing import Any

from hypothesis import strategies as st

HOSTILE: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        1,
        -1,
        2,
        10**12,
        10**400,
        1e308,
        0.5,
        "",
        "x",
        "as_int",
        "torch.ops.aten.zeros.default",
        "9" * 5000,
    ),
    *([], [1], [0, 0], [10**9, 10**9], ["x"] * 3, {}, {"x": 1}, {"as_int": -5}, {"as_name": "x"}),
)
"""Values in the place of others."""
TEXTS = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"-1",
    b"1e999",
    b"nan",
    b"9" * 5000,
    b",",
    b"\n",
    b"[" * 5000,
    b"x" * 200_000,
    b"../../x",
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw the content with a few places changed, cut out or filled with something."""
    for _ in range(draw(st.integers(1, 3))):
        place = int(draw(st.floats(0, 1)) * len(content))
        way = draw(st.sampled_from(("change", "cut", "end", "insert")))
        if way == "change" and place < len(content):
            content = content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1 :]
        elif way == "cut":
            content = content[:place] + content[place + draw(st.integers(1, 40)) :]
        elif way == "end":
            content = content[:place]
        else:
            content = content[:place] + draw(st.sampled_from(TEXTS)) + content[place:]
    return content


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """Draw a JSON document one of whose values, somewhere, is another one, or is left out."""
    inner = (
        list(document)
        if isinstance(document, dict)
        else list(range(len(document)))
        if isinstance(document, list)
        else []
    )
    if not inner or draw(st.integers(0, 8)) == 0:
        return draw(st.sampled_from(HOSTILE))
    place, copy = draw(st.sampled_from(inner)), document.copy()
    if draw(st.integers(0, 12)) == 0:
        del copy[place]
    else:
        copy[place] = draw(altered(document[place]))
    return copy
