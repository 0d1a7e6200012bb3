"""Methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from bagwise.bags.setting_checks import check_choice
from bagwise.methods.ahil import AHIL
from bagwise.methods.avg_kl import AvgKL
from bagwise.methods.base import LossMethod, Method, StepMethod
from bagwise.methods.combinatorial import Combinatorial
from bagwise.methods.count_likelihood import CountLikelihood
from bagwise.methods.dsq import DSQ
from bagwise.methods.easy_llp import EasyLLP
from bagwise.methods.fixmatch import FixMatch
from bagwise.methods.kl import KL
from bagwise.methods.l1 import L1
from bagwise.methods.l2 import L2
from bagwise.methods.llp_dc import LLPDC
from bagwise.methods.llp_mm import LLPMM
from bagwise.methods.llp_vat import LLPVAT
from bagwise.methods.llpfc import LLPFC
from bagwise.methods.lp import TransportLP
from bagwise.methods.mixbag import MixBag
from bagwise.methods.rot import ROT
from bagwise.methods.softmatch import SoftMatch
from bagwise.methods.supervised import Supervised

METHODS: Mapping[str, type[LossMethod] | type[StepMethod]] = MappingProxyType(
    {
        "kl": KL,
        "rot": ROT,
        "avg-kl": AvgKL,
        "lp": TransportLP,
        "combinatorial": Combinatorial,
        "l1": L1,
        "l2": L2,
        "easy-llp": EasyLLP,
        "dsq": DSQ,
        "count-likelihood": CountLikelihood,
        "llp-mm": LLPMM,
        "llpfc": LLPFC,
        "mixbag": MixBag,
        "llp-vat": LLPVAT,
        "fixmatch": FixMatch,
        "softmatch": SoftMatch,
        "ahil": AHIL,
        "llp-dc": LLPDC,
        "supervised": Supervised,
    }
)


def get_method(name: str, **hyperparameters: float | str) -> Method:
    """Return the method called `name` with these hyper-parameters.

    Example:
        >>> get_method("rot", alpha=0.3)
        ROT(alpha=0.3, epsilon=1.0)
    """
    check_choice("method", name, METHODS)
    method = METHODS[name]
    known = [field.name for field in fields(method)]  # pyright: ignore[reportArgumentType]
    for given in hyperparameters:
        if not known:
            raise ValueError(f"method {name!r} has no hyper-parameters, but got {given!r}.")
        check_choice(f"a hyper-parameter of method {name!r}", given, known)
    return method(**hyperparameters)


def method_name(method: Method) -> str:
    """Return the registered name of a method, or the name of its class where it is the user's own."""
    names = {kind: name for name, kind in METHODS.items()}
    return names.get(type(method), type(method).__name__)
