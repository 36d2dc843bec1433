import pytest

from megatron_energy.emulation.models import MODELS, LlmModel, named
from megatron_energy.errors import UserError

# Sizes as published with the models, in billions; output heads that are not tied to the embedding count twice.
PUBLISHED = {
    "gpt3-1.3b": 1.3,
    "gpt3-2.7b": 2.7,
    "gpt3-13b": 13.0,
    "gpt3-175b": 175.0,
    "bloom-176b": 176.2,
    "llama2-7b": 6.74,
    "llama2-70b": 68.98,
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.85,
}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_add_up_to_the_published_size(name):
    model = named(name)
    head = model.embedding_parameters if name.startswith("llama") else 0
    assert (model.parameters + head) / 1e9 == pytest.approx(PUBLISHED[name], rel=0.03)


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_consistent_and_have_a_source(name):
    model = named(name)
    assert model.hidden % model.heads == 0
    assert model.heads % (model.kv_heads or model.heads) == 0
    assert "arXiv" in model.source


def test_a_layer_by_hand():
    # Width 4, feed-forward 8: projections 4 x 16; with 1 of 2 heads for keys and values 2 x 16 + 2 x 8; matrices 2 or 3 x 32.
    assert LlmModel("tiny", 1, 4, 2, 8, 10, 16).layer_parameters == 64 + 64
    assert LlmModel("tiny", 1, 4, 2, 8, 10, 16, kv_heads=1, gated=True).layer_parameters == 48 + 96


def test_unknown_names_and_nonsense_are_refused():
    assert named("GPT3-175B") is MODELS["gpt3-175b"]
    with pytest.raises(UserError, match=r"unknown model 'gpt5': choose one of gpt3-1\.3b, "):
        named("gpt5")
    with pytest.raises(UserError, match="model 'mine': layers must be at least 1, not 0"):
        LlmModel("mine", 0, 4, 2, 8, 10, 16)
