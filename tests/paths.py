"""Where the repository's folders are."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
DATA = ROOT / "tests" / "data"
DOUBLES = ROOT / "tests" / "doubles"
