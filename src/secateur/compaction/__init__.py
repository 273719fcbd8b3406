"""`compact`: dead units removed from a pruned model, exactly."""

from secateur.compaction.compacting import compact, find_used_inputs
from secateur.compaction.modules import shrink_module

__all__ = ["compact", "find_used_inputs", "shrink_module"]
