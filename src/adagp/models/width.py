"""How a width factor scales channel counts."""


def scaled(channels: int, width: float, multiple: int = 1) -> int:
    """Return `channels` times `width`, rounded to a multiple of `multiple` that is at least 1 of them."""
    return max(1, round(channels * width / multiple)) * multiple
