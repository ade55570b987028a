# SPDX-License-Identifier: Apache-2.0
"""A model for tests where none is given: Llama's architecture with random weights.

Weights as they are usually initialized make a model that says one token for ever, whatever is in
its KV cache. These are larger: attention is sharp, and each token depends on those before it.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD = 256, 512, 4, 4, 2, 64
VOCABULARY = 2048
CONTEXT = 2048


def build(folder: Path) -> None:
    """Writes the model, and prompts-tech.u16, random token ids."""
    random = np.random.default_rng(20261124)

    def matrix(rows: int, columns: int, gain: float) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * gain / columns**0.5).astype(np.float16)

    ones = np.ones(HIDDEN, np.float16)
    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, HIDDEN**0.5),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, 1),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": ones,
            prefix + "post_attention_layernorm.weight": ones,
            prefix + "self_attn.q_proj.weight": matrix(HEADS * HEAD, HIDDEN, 1.5),
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN, 1.5),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN, 1),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD, 2),
            prefix + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1),
            prefix + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN, 1),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, 1),
        }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    random.integers(0, VOCABULARY, 1 << 14, dtype=np.uint16).tofile(folder / "prompts-tech.u16")
