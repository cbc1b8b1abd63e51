"""Fixtures of the tests of engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.imported_engines import ImportedEngines


@pytest.fixture(scope="package", autouse=True)
def engines_that_import(imported_engines: ImportedEngines) -> Iterator[None]:
    """Import each engine for itself: these tests are about how an engine starts."""
    imported_engines.close()  # these tests hold many engines at once, and need the memory
    imported_engines.copies = False
    yield
    imported_engines.copies = True
