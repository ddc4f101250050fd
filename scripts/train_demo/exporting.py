"""Writes the trained modules as Hugging Face and z-lab lay them out (bf16, shards with an index, a folder per drafter), and reads them."""

import dataclasses
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

import tokenizing
from drafters import DFlash, DFlashConfig, Mtp
from trunk import Trunk, TrunkConfig

SHARD_BYTES = 14_000_000


@torch.no_grad()
def round_to_bf16(module):
    for p in module.parameters():
        p.copy_(p.bfloat16().float())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def tensors_of(module, prefix=""):
    return {prefix + k: v.detach().cpu().bfloat16().contiguous() for k, v in module.state_dict().items()}


def trunk_config(c, stop, pad):
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
        "bos_token_id": pad, "dtype": "bfloat16", "eos_token_id": pad, "full_attention_interval": c.full_attention_interval,
        "head_dim": c.head_dim, "hidden_act": "silu", "hidden_size": c.hidden_size, "initializer_range": 0.02,
        "intermediate_size": c.intermediate_size, "layer_types": c.layer_types(),
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim, "linear_key_head_dim": c.linear_head_dim,
        "linear_num_key_heads": c.linear_num_key_heads, "linear_num_value_heads": c.linear_num_value_heads,
        "linear_value_head_dim": c.linear_head_dim, "mamba_ssm_dtype": "float32", "max_position_embeddings": 4096,
        "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.num_attention_heads, "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_key_value_heads, "pad_token_id": pad, "partial_rotary_factor": 0.25,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": c.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": c.vocab_size}


def save_trunk(trunk, mtp, tokenizer, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(trunk)
    if mtp is not None:
        tensors.update(tensors_of(mtp, "mtp."))
    shards, size = [{}], 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in shard})
    write_json(folder / "model.safetensors.index.json", {
        "metadata": {"total_parameters": sum(t.numel() for t in tensors.values()),
                     "total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": dict(sorted(weight_map.items()))})
    stop, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config = trunk_config(trunk.c, stop, pad)
    if mtp is None:
        config["mtp_num_hidden_layers"] = 0
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {
        "bos_token_id": pad, "do_sample": True, "eos_token_id": [stop, pad], "pad_token_id": pad, "temperature": 0.8,
        "top_k": 20, "top_p": 0.95})
    tokenizing.save(tokenizer, folder)


def save_drafter(drafter, folder):
    """DFlash in the older config layout (no is_causal), DFlash2 in the newer one, as z-lab's checkpoints have them."""
    folder, c = pathlib.Path(folder), drafter.c
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors_of(drafter), folder / "model.safetensors", metadata={"format": "pt"})
    sliding = "sliding_attention" in c.layer_types
    config = {
        "architectures": ["DFlash2DraftModel" if c.version == 2 else "DFlashDraftModel"], "attention_bias": False,
        "attention_dropout": 0.0, "dflash_config": {"mask_token_id": c.mask_token_id,
                                                    "target_layer_ids": list(c.target_layer_ids)},
        "dtype": "bfloat16", "head_dim": c.head_dim, "hidden_act": "silu", "hidden_size": c.hidden_size,
        "initializer_range": 0.02, "intermediate_size": c.intermediate_size, "layer_types": list(c.layer_types),
        "max_position_embeddings": 4096, "max_window_layers": len(c.layer_types), "model_type": "qwen3",
        "num_attention_heads": c.num_attention_heads, "num_hidden_layers": len(c.layer_types),
        "num_key_value_heads": c.num_key_value_heads, "num_target_layers": c.num_target_layers,
        "rms_norm_eps": c.rms_norm_eps, "sliding_window": c.sliding_window if sliding else None,
        "tie_word_embeddings": False, "use_cache": c.version == 1, "use_sliding_window": sliding, "vocab_size": c.vocab_size}
    if c.version == 2:
        config["is_causal"] = c.is_causal
        config["rope_parameters"] = {"rope_theta": c.rope_theta, "rope_type": "default"}
        config["dflash_config"].update(block_size=c.block_size, conv_kernel_size=c.conv_kernel_size,
                                       conv_group_size=c.conv_group_size, selector_rank=c.selector_rank,
                                       selector_top_k=c.selector_top_k)
    else:
        config.update(block_size=c.block_size, rope_theta=c.rope_theta, rope_scaling=None)
    write_json(folder / "config.json", dict(sorted(config.items())))


def load_folder(folder):
    """(trunk, mtp, {"dflash": ..., "dflash2": ...}) in fp32 on the CPU from a folder written by the functions above."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    c = TrunkConfig(**{f.name: config[f.name] for f in dataclasses.fields(TrunkConfig) if f.name in config})
    tensors = {}
    for shard in sorted(folder.glob("model-*.safetensors")):
        tensors.update(load_file(shard))
    trunk, mtp = Trunk(c), Mtp(c)
    trunk.load_state_dict({k: v.float() for k, v in tensors.items() if not k.startswith("mtp.")})
    mtp.load_state_dict({k.removeprefix("mtp."): v.float() for k, v in tensors.items() if k.startswith("mtp.")})
    drafters = {}
    for name in ("dflash", "dflash2"):
        drafter = DFlash(DFlashConfig.from_file(json.loads((folder / name / "config.json").read_text())))
        drafter.load_state_dict({k: v.float() for k, v in load_file(folder / name / "model.safetensors").items()})
        drafters[name] = drafter
    for module in (trunk, mtp, *drafters.values()):
        module.eval().requires_grad_(False)
    return trunk, mtp, drafters
