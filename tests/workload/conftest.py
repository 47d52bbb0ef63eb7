from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# Test modules are imported by file (importmode=importlib); shared strategies need a path.
sys.path.insert(0, str(Path(__file__).parent))

# The first example of a test may compile kernels.
settings.register_profile("workload", deadline=None)
settings.load_profile("workload")
