"""Fetching image sets into a data folder, only when asked for. torchvision does it and checks what came."""

from pathlib import Path
from types import ModuleType

TINY_IMAGENET_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_IMAGENET_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"


def fetch_cifar10(data_dir: Path) -> None:
    """Fetch CIFAR-10 (170 MB) into `cifar-10-batches-py`."""
    _datasets().CIFAR10(str(data_dir), download=True)


def fetch_cifar100(data_dir: Path) -> None:
    """Fetch CIFAR-100 (169 MB) into `cifar-100-python`."""
    _datasets().CIFAR100(str(data_dir), download=True)


def fetch_imagenette(data_dir: Path) -> None:
    """Fetch Imagenette with a shorter side of 160 pixels into `imagenette2-160`."""
    _datasets().Imagenette(str(data_dir), size="160px", download=True)


def fetch_tinyimagenet(data_dir: Path) -> None:
    """Fetch Tiny-ImageNet (248 MB) into `tiny-imagenet-200`."""
    _datasets().utils.download_and_extract_archive(TINY_IMAGENET_URL, str(data_dir), md5=TINY_IMAGENET_MD5)


def fetch_voc(data_dir: Path) -> None:
    """Fetch Pascal VOC 2012 (2 GB) into `VOCdevkit/VOC2012`."""
    _datasets().VOCDetection(str(data_dir), year="2012", image_set="trainval", download=True)


def _datasets() -> ModuleType:
    from adagp.models.vision import load_torchvision

    return load_torchvision("torchvision.datasets")
