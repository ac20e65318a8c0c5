"""BERT-flow: Glow on sentence vectors, from bijections to the trained calibration."""

from jaxvec.calibration.flow.flow import Flow, FlowEnsemble

__all__ = ["Flow", "FlowEnsemble"]
