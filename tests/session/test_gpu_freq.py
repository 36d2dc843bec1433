import pytest

from megatron_energy.errors import UserError
from megatron_energy.session.gpu_freq import refuse_gpu_freq


@pytest.mark.parametrize("environment", [{"SLURM_GPU_FREQ": "medium"}, {"SLURMD_TRES_FREQ": "gpu:medium"}])
@pytest.mark.parametrize("policy", ["segments", "operations", "uniform", "dry-run"])
def test_gpu_freq_and_a_plan_are_not_mixed(environment: dict[str, str], policy: str) -> None:
    with pytest.raises(UserError, match=rf"\(--gpu-freq, (gpu:)?medium\), and so would --energy-policy {policy}: submit without"):
        refuse_gpu_freq(policy, environment)


@pytest.mark.parametrize("policy", [None, "off", "measure", "maximum"])
def test_who_leaves_clocks_alone_may_use_it(policy: str | None) -> None:
    refuse_gpu_freq(policy, {"SLURM_GPU_FREQ": "medium"})


def test_other_jobs_are_not_concerned() -> None:
    refuse_gpu_freq("segments", {"SLURM_JOB_ID": "4711", "SLURM_GPU_FREQ": ""})
