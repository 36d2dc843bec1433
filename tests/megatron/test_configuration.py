"""What is refused, with its reason."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_energy.megatron import configuration, gradients

CALL: dict[str, Any] = {"num_microbatches": 2, "forward_only": False}


@pytest.mark.parametrize(
    ("config", "call", "reason"),
    [
        ({}, {}, None),
        ({"overlap_moe_expert_parallel_comm": True}, {}, configuration.COMBINED),
        ({"overlap_moe_expert_parallel_comm": True}, {"forward_only": True}, None),
        ({"cuda_graph_impl": "full_iteration"}, {}, configuration.FULL_GRAPH),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": [SimpleNamespace(name="full_iteration")]}, {}, configuration.FULL_GRAPH),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, {}, configuration.FULL_GRAPH),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": [SimpleNamespace(name="attn")]}, {}, None),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": None}, {}, None),
        ({"hybrid_context_parallel": True}, {}, configuration.HYBRID_CONTEXT),
        ({"variable_seq_lengths": True}, {}, configuration.VARIABLE_LENGTHS),
        ({}, {"p2p_communicator": SimpleNamespace()}, configuration.MULTI_MODULE),
        ({}, {"p2p_communicator": SimpleNamespace(pp_group=None)}, None),
        ({}, {"p2p_communicator": None}, None),
    ],
)
def test_refusals(config: dict[str, Any], call: dict[str, Any], reason: str | None) -> None:
    assert configuration.refusal(SimpleNamespace(**config), {**CALL, **call}) == reason


def test_wrappers_are_looked_through() -> None:
    model = SimpleNamespace(vocab_size=64)
    assert configuration.innermost(SimpleNamespace(module=SimpleNamespace(module=model))) is model
    assert configuration.innermost(model) is model


@pytest.mark.parametrize(
    ("overlap", "function", "chunks", "first_stage", "expected"),
    [
        (False, None, 1, True, False),
        (True, None, 1, False, True),  # no function: inside the last backward everywhere
        (True, print, 1, True, True),  # plain schedule, first stage
        (True, print, 1, False, False),  # plain schedule, others: after the last backward
        (True, print, 2, True, False),  # interleaved: by function calls
    ],
)
def test_where_reductions_start(overlap: bool, function: Any, chunks: int, first_stage: bool, expected: bool) -> None:
    models = [SimpleNamespace(ddp_config=SimpleNamespace(overlap_grad_reduce=overlap))] * chunks
    assert gradients.reduces_in_backward(SimpleNamespace(grad_sync_func=function), models, first_stage) == expected


def test_models_without_data_parallel_wrapper_reduce_nothing() -> None:
    assert not gradients.reduces_in_backward(SimpleNamespace(grad_sync_func=None), [SimpleNamespace()], True)


@pytest.mark.parametrize(("told", "version"), [("0.19.2+4bdb92b", "0.19.2"), ("0.19.2", "0.19.2"), ("0.17.0rc0+1a2b3c4", "0.17.0rc0")])
def test_the_commit_of_a_repository_around_it_is_no_part_of_the_version(told: str, version: str) -> None:
    assert configuration.core_version(told) == version


def test_settings_that_change_the_time_of_operations() -> None:
    kind = type("dtype", (), {"__str__": lambda self: "torch.bfloat16"})()
    config = {
        "params_dtype": kind,
        "num_query_groups": 8,
        "fp8_recipe": "delayed",
        "recompute_modules": ["core_attn"],
        "tp_comm_overlap": False,
    }
    assert configuration.settings(SimpleNamespace(**config)) == "params_dtype=bfloat16 num_query_groups=8"
    config |= {
        "fp8": "hybrid",
        "recompute_granularity": "selective",
        "attention_backend": SimpleNamespace(name="flash"),
        "moe_router_topk": 2,
    }
    assert configuration.settings(SimpleNamespace(**config)) == (
        "params_dtype=bfloat16 fp8=hybrid fp8_recipe=delayed attention_backend=flash num_query_groups=8 "
        "recompute_granularity=selective recompute_modules=core_attn"
    )
    assert configuration.settings(SimpleNamespace(num_moe_experts=4, moe_router_topk=2)) == "num_moe_experts=4 moe_router_topk=2"


@pytest.mark.parametrize(
    ("args", "left"), [({"train_iters": 10}, 10), ({"train_iters": 10, "iteration": 7}, 3), ({"train_iters": None}, 0), ({}, 0)]
)
def test_iterations_left_as_megatron_counts_them(args: dict[str, Any], left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(_GLOBAL_ARGS=SimpleNamespace(**args))
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", module)  # type: ignore[misc]
    assert configuration._iterations() == left
    monkeypatch.delitem(sys.modules, "megatron.training.global_vars")
    assert configuration._iterations() == 0
