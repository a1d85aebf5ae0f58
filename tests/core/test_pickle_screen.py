"""Pickles from elsewhere: honest ones pass, whatever they hold; those that would hang or exhaust a reader do not."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagp.core.pickle_screen import check_pickle, check_torch_archive

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
@pytest.mark.medium
def test_plain_values_pass_in_every_protocol(value: Any, protocol: int) -> None:
    check_pickle(pickle.dumps([value, value, OrderedDict(a=value)], protocol))


def test_many_ordinary_keys_pass() -> None:
    check_pickle(pickle.dumps({number: (number, str(number)) for number in range(20_000)}))
    check_pickle(pickle.dumps({(number, "a"): 1 for number in range(20_000)}))


def nested_key(depth: int) -> bytes:
    """Return a pickle of a table whose key is a tuple of the same tuple twice, and so on: 13 bytes each level."""
    levels = b"".join(b"h%ch%c\x86q%c0" % (level, level, level + 1) for level in range(depth))
    return b"\x80\x02)q\x000" + levels + b"}h%cK\x01s." % depth


TOO_LONG = "its keys are nested in a way that would take too long to read"


def test_nested_keys_do_not() -> None:
    pair = ((), ())
    assert pickle.loads(nested_key(3)) == {((pair, pair), (pair, pair)): 1}
    check_pickle(nested_key(10))
    with pytest.raises(pickle.UnpicklingError, match=TOO_LONG):
        check_pickle(nested_key(60))
    in_a_set = nested_key(60).replace(b"}h<K\x01s.", b"cbuiltins\nset\n]h<a\x85R.")
    with pytest.raises(pickle.UnpicklingError, match=TOO_LONG):
        check_pickle(in_a_set)


def test_numbers_that_share_a_hash_do_not_fill_a_table() -> None:
    check_pickle(pickle.dumps(dict.fromkeys((2**61 - 1) * number for number in range(50))))
    for values in (range(1, 5000), map(float, range(1, 5000))):
        content = pickle.dumps(dict.fromkeys((2**61 - 1) * value for value in values))
        with pytest.raises(pickle.UnpicklingError, match=TOO_LONG):
            check_pickle(content)


@pytest.mark.parametrize("content", [b"", b"\x80", b"0.", b"(s.", b"h\x07.", b"(0.", b"\x80\x02}q\x00X\xff", b"\xff"])
def test_damage_is_named(content: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="its pickle is damaged: "):
        check_pickle(content)


def test_a_place_in_the_memo_that_is_out_of_proportion() -> None:
    with pytest.raises(pickle.UnpicklingError, match="it claims more than the file can hold"):
        check_pickle(b"}r" + struct.pack("<I", 2**31) + b".")


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def with_pickle(content: bytes, pickled: bytes) -> bytes:
    """Return an archive of torch with another pickle."""
    source, buffer = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for entry in source.infolist():
            archive.writestr(entry, pickled if entry.filename.endswith("data.pkl") else source.read(entry))
    return buffer.getvalue()


def test_archives_of_torch(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(50)))
    content = saved({"model": model.state_dict(), "optimizer": torch.optim.Adam(model.parameters()).state_dict()})
    (tmp_path / "file.pt").write_bytes(content)
    assert 50 * 80 < check_torch_archive(tmp_path / "file.pt") <= len(content)
    with pytest.raises(pickle.UnpicklingError, match=TOO_LONG):
        check_torch_archive(io.BytesIO(with_pickle(content, nested_key(60))))
    twice = io.BytesIO(content)
    with zipfile.ZipFile(twice, "a") as archive:
        archive.writestr("other/data.pkl", b"}.")
    with pytest.raises(zipfile.BadZipFile, match="it is not an archive of torch.save"):
        check_torch_archive(twice)
    with pytest.raises(zipfile.BadZipFile):
        check_torch_archive(io.BytesIO(pickle.dumps({})))
