"""The table of data sets."""

from pathlib import Path

from adagp.data import DATASETS, describe_datasets


def test_rows(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    rows = {row.info.name: row for row in describe_datasets(tmp_path)}
    assert list(rows) == list(DATASETS)
    assert rows["digits"].found is not None
    assert Path(rows["digits"].found).name == "digits.npz"
    assert rows["cifar10"].found is None
    assert rows["cifar10"].looked_for == (f"{tmp_path}/cifar10.npz", f"{tmp_path}/cifar-10-batches-py")
    assert rows["cifar100"].found == f"{tmp_path}/cifar-100-python"
    cifar100, imagenet = (rows[name].as_dict() for name in ("cifar100", "imagenet"))
    assert (cifar100["downloadable"], imagenet["downloadable"]) == (True, False)
    assert (imagenet["shape"], imagenet["classes"]) == ((3, 224, 224), 1000)
