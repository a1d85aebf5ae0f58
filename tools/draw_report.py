"""Draw README's picture of the report: the beginning of the page that `make demo` writes, in headless Chromium.

make demo && .venv/bin/python -m tools.draw_report"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PAGE, PICTURE = Path("runs/demo/report.html"), Path("docs/images/report.png")
WIDTH, SCALE = 1060, 1.5
UNTIL = "#chapter-1-curves .charts"
"""The picture ends below this part of the page."""


def main() -> None:
    """Draw the picture; exit with a message if Chromium or the page is missing."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or not PAGE.is_file():
        sys.exit(f"{'Chromium is not installed' if program is None else f'there is no {PAGE}: make demo first'}.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        page.goto(PAGE.resolve().as_uri())
        page.wait_for_selector("html[data-drawn]")
        box = page.locator(UNTIL).first.bounding_box()
        assert box is not None
        height = box["y"] + box["height"] + 20
        page.screenshot(path=PICTURE, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()
    print(f"{PICTURE} is drawn.")


if __name__ == "__main__":
    main()
