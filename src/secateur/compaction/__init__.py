"""`compact`: dead units removed from a pruned model, exactly."""

from secateur.compaction.compacting import compact
from secateur.compaction.modules import shrink_module

__all__ = ["compact", "shrink_module"]
