"""Serving engines for live validation: started on this machine, or running elsewhere."""

from smetric_model.live.rig.engines import Rig
from smetric_model.live.rig.spec import EnginesSpec

__all__ = ["EnginesSpec", "Rig"]
