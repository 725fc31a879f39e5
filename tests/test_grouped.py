"""Attention on a CPU whose query heads share key heads: transformers' sdpa is what it must equal."""

from pathlib import Path
from typing import Any

import pytest
import test_equality
import tiny
import tiny_families
import torch
import toys
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import mmspec
from mmspec.drafters.eagle import Eagle
from mmspec.grouped import FEW, NAME, grouped_attention, use_grouped_attention


def layer(groups: int) -> nn.Module:
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = groups, True
    return module


def mask_of(form: str, nodes: int) -> Tensor | None:
    draw = torch.Generator().manual_seed(nodes)
    heads = 6 if form == "by head" else 1
    seen = torch.rand(1 if form == "one row" else 2, heads, nodes, 40, generator=draw) < 0.5
    seen[..., 0] = True
    if form == "bool":
        return seen
    if form == "one for all":
        seen = seen[:, :, :1]
    return None if form == "none" else torch.zeros(seen.shape).double().masked_fill_(~seen, torch.finfo(float).min)


@pytest.mark.parametrize("form", ["additive", "bool", "one row", "one for all", "by head", "none"])
@pytest.mark.parametrize("nodes", [1, 5, FEW + 1])
def test_it_is_sdpa(nodes: int, form: str) -> None:
    """Also for prompts, which it leaves to sdpa."""
    draw = torch.Generator().manual_seed(1)
    query = torch.randn(2, 6, nodes, 8, generator=draw).double()
    key, value = torch.randn(2, 2, 2, 40, 8, generator=draw).double()
    if form == "none" and nodes > 1:  # a prompt that nothing stands before
        key, value = (each.repeat(1, 1, 2, 1)[:, :, :nodes] for each in (key, value))
    mask = mask_of(form, nodes)
    for scaling in (None, 0.7):
        out, none = grouped_attention(layer(3), query, key, value, mask, scaling=scaling)
        want, _ = sdpa_attention_forward(layer(3), query, key, value, mask, scaling=scaling)
        assert none is None
        assert out.is_contiguous()
        assert torch.allclose(out, want, atol=1e-12, rtol=0)


def test_what_it_does_not_know_is_left_to_transformers() -> None:
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    mask, bias = torch.zeros(1, 1, 3, 3), torch.randn(1, 4, 3, 3)
    out, _ = grouped_attention(layer(2), query, key, key, mask, position_bias=bias)
    want, _ = sdpa_attention_forward(layer(2), query, key, key, mask, position_bias=bias)
    assert torch.equal(out, want)
    assert not torch.allclose(out, grouped_attention(layer(2), query, key, key, mask)[0])
    with pytest.raises(ValueError, match="softcap"):
        grouped_attention(layer(2), query, key, key, mask, softcap=30.0)


def test_a_model_that_is_read_uses_it_and_says_what_the_stock_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plain steps and under trees no key is repeated."""
    folder = tiny.tiny_llama(tmp_path)
    stock = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    pipe = mmspec.load(folder, "none", dtype="float64")
    model: Any = pipe.target.model
    assert model.config._attn_implementation == NAME
    inputs = toys.prompts(17)
    want = test_equality.hf(stock, inputs, 30)

    def refused(*given: Any) -> Any:
        pytest.fail("keys were repeated")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", refused)
    model.generation_config.eos_token_id = None
    head = Eagle(toys.copying_head(model, 0.1), depth=3, width=3, top_k=4, total=12)
    for drafter in ("none", "recycling", head):
        answer = pipe.with_drafter(drafter, "own").generate(**inputs, max_new_tokens=30)
        assert answer.token_ids == want
        assert answer.stats.tau == 1 or drafter != "none"


def test_only_models_whose_heads_share_keys_use_it() -> None:
    """Of those that see the decoder alone."""

    def used(model: PreTrainedModel) -> str:
        use_grouped_attention(model)
        return str(model.config.get_text_config(decoder=True)._attn_implementation)

    assert used(toys.llama()) == NAME
    assert used(toys.llama(num_key_value_heads=4)) == "sdpa"
    assert used(toys.llama("eager")) == "eager"
    seeing, _ = tiny_families.smolvlm(0)
    assert used(seeing) == NAME
    assert seeing.config.vision_config._attn_implementation == "sdpa"


def test_a_model_of_the_caller_s_is_left_as_it_is() -> None:
    model = toys.llama()
    mmspec.load(model, "none")
    assert model.config._attn_implementation == "sdpa"
    use_grouped_attention(model)
    assert mmspec.load(model, "none").target.model is model  # such a one may be passed on
