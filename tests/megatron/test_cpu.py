"""The CPU shims, each in a process of its own: they change torch for good."""

import subprocess
import sys
import textwrap

from tests.megatron.launching import REPOSITORY, needs_megatron

pytestmark = needs_megatron


def run(source: str, install: str = "cpu.install()") -> str:
    """Run ``source`` after the shims; its output."""
    program = f"import torch\nfrom megatron_energy.megatron import cpu\n{install}\n{textwrap.dedent(source)}"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_names_that_mean_cuda_answer_with_the_cpu() -> None:
    run("""
        x = torch.arange(3, dtype=torch.float32, device="cuda")
        assert x.device.type == "cpu" and x.tolist() == [0, 1, 2]
        assert x.new_zeros(2, device=torch.device("cuda", 0)).device.type == "cpu"
        assert torch.empty(1, device=torch.cuda.current_device(), pin_memory=True).device.type == "cpu"
        assert torch.zeros_like(x, device=0).device.type == "cpu"
        assert x.to("cuda:0") is x and x.to(device="cuda") is x and x.cuda() is x and x.pin_memory() is x
        assert x.to(torch.bfloat16).dtype == torch.bfloat16, "other conversions still convert"
        assert x.type() == "torch.cuda.FloatTensor" and x.type("torch.cuda.HalfTensor").dtype == torch.float16
        assert torch.nn.Linear(1, 1).cuda().weight.device.type == "cpu"
        assert torch.compile(len) is len and torch.compile()(len) is len
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    """)


def test_random_states_are_the_cpu_generator_s() -> None:
    run("""
        torch.cuda.manual_seed(5)
        state = torch.cuda.get_rng_state()
        first = torch.rand(3, device="cuda")
        done = []
        torch.cuda._lazy_call(lambda: (torch.cuda.set_rng_state(state), done.append(1)))
        assert done == [1], "a restore that is queued would be lost"
        assert torch.equal(torch.rand(3), first)
        assert torch.cuda.default_generators[3] is torch.default_generator
    """)


def test_streams_and_events_do_not_wait() -> None:
    run("""
        with torch.cuda.stream(torch.cuda.Stream()):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            end.record()
        torch.cuda.current_stream().wait_event(end)
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
        assert end.query() and torch.cuda.current_stream().query() and begin.elapsed_time(end) >= 0
        assert isinstance(torch.cuda.current_stream().record_event(), torch.cuda.Event)
    """)


def test_megatron_imports_without_triton_and_keeps_its_names() -> None:
    run("""
        import importlib.util
        if importlib.util.find_spec("triton") is None:
            import triton, triton.language as tl
            @triton.jit
            def kernel(x): return x
            @triton.heuristics({"n": len})
            def other(x): return x
            assert kernel(3) == 3 and triton.cdiv(7, 2) == 4 and tl.constexpr is not None
        from torch.utils._triton import has_triton
        assert not has_triton()
        import megatron.core.models.gpt, megatron.core.pipeline_parallel
        from typing import override
        assert override(run := lambda: 3) is run and run() == 3 and run.__override__
    """)


def test_torch_norms_carry_the_mark_of_sequence_parallelism() -> None:
    run("""
        from types import SimpleNamespace
        from megatron.core.transformer.torch_norm import WrappedTorchNorm
        for kind, parallel in (("LayerNorm", True), ("RMSNorm", False)):
            norm = WrappedTorchNorm(config=SimpleNamespace(normalization=kind, sequence_parallel=parallel), hidden_size=8, eps=1e-3)
            assert type(norm).__name__ == kind and norm.eps == 1e-3
            assert [p.sequence_parallel for p in norm.parameters()] == [parallel] * len(list(norm.parameters()))
    """)


def test_a_sent_tensor_is_kept_until_its_send_is_waited_for() -> None:
    """What Megatron's deallocate_pipeline_outputs does must not reach the bytes on their way."""
    out = run("""
        import torch.distributed as dist
        from megatron_energy.megatron.cpu import gloo
        class Work:
            def wait(self): return True
            def is_completed(self): return "asked"
        sent = torch.ones(4)
        storage = sent.untyped_storage().data_ptr()
        work = gloo._SendWork(Work(), sent.detach())
        sent.data = torch.empty(1)
        assert work._memory.untyped_storage().data_ptr() == storage and work._memory.tolist() == [1.0] * 4
        assert work.is_completed() == "asked"
        assert work.wait() and work._memory is None
        import torch.distributed.distributed_c10d as c10d
        assert dist.isend is c10d.isend, "P2POp compares the two"
        print("kept")
    """)
    assert out == "kept\n"


def test_a_host_with_cuda_refuses_unless_forced() -> None:
    refused = """
        try:
            cpu.install()
        except UserError as error:
            print(error)
        assert not cpu.installed() and not hasattr(torch.empty, "__wrapped__")
    """
    with_cuda = "from megatron_energy.errors import UserError\ntorch.cuda.is_available = lambda: True"
    said = run(refused, install=with_cuda)
    assert said.startswith("this host has CUDA, so CPU emulation stays off") and said.count("\n") == 1
    run("import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '' and cpu.installed()", install="cpu.install(force=True)")


def test_nothing_is_installed_by_importing() -> None:
    run("assert not cpu.installed() and not torch.cuda.is_available() and not hasattr(torch.empty, '__wrapped__')", install="")
