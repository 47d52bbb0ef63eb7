from __future__ import annotations

import sys
from pathlib import Path

# Test modules are imported by file (importmode=importlib); shared helpers need a path.
sys.path.insert(0, str(Path(__file__).parent))
