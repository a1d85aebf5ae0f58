"""Folders of foreign folders: nothing is written or deleted through a link."""

from pathlib import Path

import pytest

from adagp.core.files import check_folder, delete_entries, delete_folder, folder_names
from adagp.errors import RunError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return a folder outside the run, with content that must stay."""
    (tmp_path / "target" / "1").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return tmp_path / "target"


def test_a_folder_is_made_where_it_is_missing(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "run" / "wandb", create=True).is_dir()
    assert check_folder(tmp_path / "run" / "mlflow") == tmp_path / "run" / "mlflow"
    assert not (tmp_path / "run" / "mlflow").exists()
    assert folder_names(tmp_path / "nowhere") == []


def test_a_link_is_not_followed(target: Path, tmp_path: Path) -> None:
    link = tmp_path / "run" / "checkpoints"
    link.symlink_to(target)
    for use in (check_folder, folder_names, lambda path: delete_entries(path, lambda name: True)):
        with pytest.raises(RunError) as caught:
            use(link)
        assert str(caught.value) == f"cannot use the folder '{link}': it is a link, which is not followed."
    delete_folder(link)
    assert not link.is_symlink()
    assert (target / "1").is_dir()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "wandb").touch()
    with pytest.raises(RunError) as caught:
        check_folder(tmp_path / "wandb", create=True)
    assert str(caught.value) == f"cannot use the folder '{tmp_path / 'wandb'}': Not a directory."


def test_links_inside_may_stay_inside_only(target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "wandb"
    (folder / "deep").mkdir(parents=True)
    (folder / "latest").symlink_to("deep")
    assert check_folder(folder) == folder
    (folder / "deep" / "file").symlink_to(target / "new")
    with pytest.raises(RunError) as caught:
        check_folder(folder)
    link = folder / "deep" / "file"
    assert str(caught.value) == f"cannot use the folder '{folder}': '{link}' is a link that leads out of it."


def test_links_among_the_entries_are_removed_and_their_targets_stay(target: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "1").symlink_to(target)
    (tmp_path / "run" / "2").mkdir()
    (tmp_path / "run" / "3").mkdir()
    assert folder_names(tmp_path / "run") == ["2", "3"]
    delete_entries(tmp_path / "run", lambda name: name != "3")
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["3"]
    assert (target / "1").is_dir()
