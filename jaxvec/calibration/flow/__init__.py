"""BERT-flow: Glow on sentence vectors, from bijections to the trained calibration."""

from jaxvec.calibration.flow.ensemble import FlowEnsemble
from jaxvec.calibration.flow.flow import Flow

__all__ = ["Flow", "FlowEnsemble"]
