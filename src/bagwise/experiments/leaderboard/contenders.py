"""Who takes part in the leaderboard. To add a contender, add a line to `CONTENDERS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bagwise.experiments.leaderboard.by_features import ByProbe, BySelfTraining
from bagwise.experiments.leaderboard.by_method import ByMethod
from bagwise.experiments.leaderboard.contest import Contender

# In the order of tables. A method is charged what an epoch of it costs; see `leaderboard.budget`.
CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        "kl": ByMethod("kl"),
        "rot": ByMethod("rot"),
        "avg-kl": ByMethod("avg-kl"),
        "lp": ByMethod("lp"),
        "combinatorial": ByMethod("combinatorial"),
        "l1": ByMethod("l1"),
        "l2": ByMethod("l2"),
        "easy-llp": ByMethod("easy-llp"),
        "dsq": ByMethod("dsq"),
        "count-likelihood": ByMethod("count-likelihood"),
        "llp-mm": ByMethod("llp-mm"),
        "llpfc": ByMethod("llpfc"),
        "mixbag": ByMethod("mixbag"),
        # the instances and their shifted copies; and to find the shift two forward passes and one back to the inputs
        "llp-vat": ByMethod("llp-vat", passes_per_epoch=3),
        # a weak and a strong view
        "fixmatch": ByMethod("fixmatch", passes_per_epoch=2),
        "softmatch": ByMethod("softmatch", passes_per_epoch=2),
        "ahil": ByMethod("ahil", passes_per_epoch=2),
        "llp-dc": ByMethod("llp-dc", passes_per_epoch=2),
        # ours
        "probe": ByProbe(),
        "self-training": BySelfTraining(),
    }
)
