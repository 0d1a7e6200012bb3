"""`probe`: a classifier on frozen features, for people who have embeddings and few, large bags."""

from bagwise.probe.fit import ProbeFit, fit_probe
from bagwise.probe.network import ProbeNetwork
from bagwise.probe.settings import Probe

__all__ = ["Probe", "ProbeFit", "ProbeNetwork", "fit_probe"]
