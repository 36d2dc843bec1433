"""Settling recorded programs: an event simulation that shares no code with the planner's graph and replay."""

from megatron_energy.emulation.settle.gpu import Gpu
from megatron_energy.emulation.settle.requests import RequestLatency
from megatron_energy.emulation.settle.settler import Settler
from megatron_energy.emulation.settle.simulation import SettleError
from megatron_energy.emulation.settle.wiring import Wiring

__all__ = ["Gpu", "RequestLatency", "SettleError", "Settler", "Wiring"]
