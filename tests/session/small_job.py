"""A job of 2 ranks that real Megatron can run in seconds, and a plan for it that was made without Megatron."""

from pathlib import Path

from megatron_energy.profiles.files import save_profile
from megatron_energy.session.options import EnergyOptions
from tests.session.facts import job
from tests.session.launched import UNTIL_PLAN
from tests.session.simulated import SimulatedRun

LAYOUT = ["--pipeline", "2", "--virtual", "2", "--microbatches", "4", "--layers", "4", "--overlap", "--keep-outputs"]
"""Arguments of tiny_gpt.py."""
MODEL = {
    "layers": 4, "hidden_size": 32, "ffn_hidden_size": 128, "attention_heads": 4, "vocabulary": 64, "sequence_length": 16,
    "microbatch_size": 1, "core_version": "0.19.2",
    "settings": "params_dtype=float32 transformer_impl=transformer_engine attention_backend=auto num_query_groups=4 kv_channels=8",
}  # fmt: skip
"""The model in it, as its ranks' facts tell it."""
FACTS = job(pipeline=2, chunks=2, microbatches=4, **MODEL)
OPTIONS = EnergyOptions(
    policy="segments", device="emulated", emulated_model="gpt3-13b", emulated_micro_batch=4, baseline_iterations=1, sweep_clocks=3
)
"""As launched.EMULATED and launched.SHORT."""


def make(folder: Path) -> Path:
    """Write plan.json and profile.csv of the job into a folder; returns the folder."""
    run = SimulatedRun(OPTIONS, FACTS, FACTS.schedule("overlap"))
    run.iterate(UNTIL_PLAN)
    findings = run.coordinator.findings
    assert findings.planned is not None and findings.profile is not None, run.said
    findings.planned.save(folder / "plan.json")
    save_profile(findings.profile, folder / "profile.csv")
    return folder
