"""MTP head, DFlash and DFlash2 drafters: parallel forms that serve both training and evaluation.

Every form evaluates all anchors of a text at once: what a drafter proposes after an anchor depends only on the
committed text before it, so a teacher-forced pass over the finished text gives every round's drafts.
Tensor names on disk: MTP `mtp.*` beside the trunk's; DFlash without a prefix, in a file of its own.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

from trunk import Layer, Mlp, RmsNorm1, TrunkConfig, rope_tables, rotate


class Mtp(nn.Module):
    """Multi-token prediction: row p pairs the trunk's final-normed hidden state of p with the embedding of token p+1."""

    def __init__(self, c: TrunkConfig):
        super().__init__()
        self.c = c
        self.pre_fc_norm_embedding = RmsNorm1(c.hidden_size, c.rms_norm_eps)
        self.pre_fc_norm_hidden = RmsNorm1(c.hidden_size, c.rms_norm_eps)
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(c, "full_attention")])
        self.norm = RmsNorm1(c.hidden_size, c.rms_norm_eps)
        init_linears(self)

    def forward(self, hidden, embeddings, steps):
        """Outputs m_1..m_steps, each [B, T, H]: lm_head(m_s[p]) predicts token p+1+s.

        hidden [B, T, H] of the trunk; embeddings [B, T + steps, H] of the text. Step s > 1 of row p reads
        m_{s-1}[p] and token p+s at position p+s-1, and attends to step 1's rows 0..p and its own earlier steps,
        which is what the cache holds when drafting starts at p."""
        attention, layer = self.layers[0].self_attn, self.layers[0]
        b, t, _ = hidden.shape
        causal = torch.ones(t, t, dtype=torch.bool, device=hidden.device).tril()
        groups = self.c.num_attention_heads // self.c.num_key_value_heads
        scale, outputs, own = self.c.head_dim ** -0.5, [], []
        for s in range(1, steps + 1):
            e = self.pre_fc_norm_embedding(embeddings[:, s:s + t])
            x = self.fc(torch.cat([e, self.pre_fc_norm_hidden(hidden)], -1))
            positions = (torch.arange(t, device=hidden.device) + s - 1).expand(b, t)
            cos, sin = rope_tables(positions, self.c.rotary_dim, self.c.rope_theta)
            q, gate, k, v = attention.project(layer.input_layernorm(x), cos, sin)
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            if s == 1:
                keys, values = k, v
            else:
                own.append((k, v))
            scores = (q @ keys.transpose(-1, -2)).float().masked_fill(~causal, -torch.inf)
            extra = [(q.float() * own_k.float()).sum(-1, keepdim=True) for own_k, _ in own]
            weights = torch.softmax(torch.cat([scores] + extra, -1) * scale, -1).to(values.dtype)
            attended = weights[..., :t] @ values
            for i, (_, own_v) in enumerate(own):
                attended = attended + weights[..., t + i:t + i + 1] * own_v
            x = x + attention.finish(attended, gate)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            hidden = self.norm(x)
            outputs.append(hidden)
        return outputs


@dataclasses.dataclass
class DFlashConfig:
    version: int = 1
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    layer_types: tuple = ("sliding_attention", "full_attention")
    sliding_window: int = 256
    is_causal: bool | None = None  # None: sliding layers causal, full layers bidirectional
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    block_size: int = 8
    target_layer_ids: tuple = (2, 6, 10)
    num_target_layers: int = 12
    mask_token_id: int = 4095
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 64
    selector_top_k: int = 16
    rope_theta: float = 1e7
    rms_norm_eps: float = 1e-6

    @staticmethod
    def from_file(config):
        """Reads config.json of either version: dflash_config first, then the top level."""
        inner = config["dflash_config"]

        def get(key, default):
            return inner.get(key, config.get(key, default))

        names = [f.name for f in dataclasses.fields(DFlashConfig)]
        values = {n: get(n, None) for n in names if get(n, None) is not None}
        values["layer_types"] = tuple(values["layer_types"])
        values["target_layer_ids"] = tuple(values["target_layer_ids"])
        values["version"] = 2 if config["architectures"] == ["DFlash2DraftModel"] else 1
        if "rope_parameters" in config:
            values["rope_theta"] = config["rope_parameters"]["rope_theta"]
        return DFlashConfig(**values)


class RmsNorm0(nn.Module):
    """Plain-weight RMS norm (Qwen3's): rounds to the input's type before the weight."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return self.weight.to(x.dtype) * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class BlockConv(nn.Module):
    """DFlash2's convolution over a block's rows, before (side 0) and after (side 1) a sublayer."""

    def __init__(self, c):
        super().__init__()
        self.taps, self.group = c.conv_kernel_size, c.conv_group_size
        base = torch.zeros(2, self.taps, c.hidden_size)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(c.hidden_size, 2 * self.taps * c.hidden_size // self.group, bias=False)

    def kernels(self, normed):
        """[..., rows, 2, taps, H]: the base plus what the normed sublayer input adds per group."""
        dynamic = self.kernel_projection(normed).unflatten(-1, (2, self.taps, -1))
        return self.base_kernel + dynamic.repeat_interleave(self.group, -1)

    def apply_side(self, x, kernels, side):
        out = kernels[..., side, 0, :] * x
        for tap in range(1, self.taps):
            out = out + kernels[..., side, tap, :] * F.pad(x, (0, 0, tap, 0))[..., :x.shape[-2], :]
        return out


class DFlashAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = RmsNorm0(c.head_dim, c.rms_norm_eps)
        self.k_norm = RmsNorm0(c.head_dim, c.rms_norm_eps)

    def keys_values(self, x, cos, sin):
        """[..., rows, Hkv, D] with norm and rotation on the keys."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.c.num_key_value_heads, self.c.head_dim)))
        v = self.v_proj(x).unflatten(-1, (self.c.num_key_value_heads, self.c.head_dim))
        return rotate(k, cos[..., None, :], sin[..., None, :]), v

    def forward(self, n, block_rope, context, context_rope, context_mask, block_mask):
        """n [B, A, R, H] of A blocks of R rows; context [B, T, H]; masks broadcast to [B, 1, A, R, T] and [R, R]."""
        cos, sin = block_rope
        groups = self.c.num_attention_heads // self.c.num_key_value_heads
        q = self.q_norm(self.q_proj(n).unflatten(-1, (self.c.num_attention_heads, self.c.head_dim)))
        q = rotate(q, cos[..., None, :], sin[..., None, :])
        k, v = (x.repeat_interleave(groups, -2) for x in self.keys_values(n, cos, sin))
        ck, cv = (x.repeat_interleave(groups, -2) for x in self.keys_values(context, *context_rope))
        outer = torch.einsum("barhd,bthd->bhart", q, ck).float().masked_fill(~context_mask, -torch.inf)
        inner = torch.einsum("barhd,bashd->bhars", q, k).float().masked_fill(~block_mask, -torch.inf)
        weights = torch.softmax(torch.cat([outer, inner], -1) * self.c.head_dim ** -0.5, -1).to(v.dtype)
        t = ck.shape[1]
        out = torch.einsum("bhart,bthd->barhd", weights[..., :t], cv)
        out = out + torch.einsum("bhars,bashd->barhd", weights[..., t:], v)
        return self.o_proj(out.flatten(-2))


class DFlashLayer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.window = c.sliding_window if kind == "sliding_attention" else None
        self.causal = c.is_causal if c.is_causal is not None else kind == "sliding_attention"
        self.self_attn = DFlashAttention(c)
        self.mlp = Mlp(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RmsNorm0(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm0(c.hidden_size, c.rms_norm_eps)
        if c.version == 2:
            self.attention_conv, self.mlp_conv = BlockConv(c), BlockConv(c)

    def visible(self, q, k):
        ok = torch.ones(torch.broadcast_shapes(q.shape, k.shape), dtype=torch.bool, device=q.device)
        if self.causal:
            ok = ok & (k <= q)
        if self.window:
            ok = ok & (q - k < self.window) & (k - q < self.window)
        return ok

    def forward(self, x, positions, block_rope, context, context_rope):
        """positions [B, A, R]; context row t is position t and is seen only before its block's anchor."""
        t = torch.arange(context.shape[1], device=x.device)
        context_mask = self.visible(positions[..., None], t) & (t < positions[..., :1, None])
        row = torch.arange(positions.shape[-1], device=x.device)
        arguments = (block_rope, context, context_rope, context_mask[:, None], self.visible(row[:, None], row))
        n = self.input_layernorm(x)
        x = x + self.around(getattr(self, "attention_conv", None), n, lambda y: self.self_attn(y, *arguments))
        n = self.post_attention_layernorm(x)
        return x + self.around(getattr(self, "mlp_conv", None), n, self.mlp)

    @staticmethod
    def around(conv, normed, sublayer):
        if conv is None:
            return sublayer(normed)
        kernels = conv.kernels(normed)
        return conv.apply_side(sublayer(conv.apply_side(normed, kernels, 0)), kernels, 1)


class Selector(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.hidden_projection = nn.Linear(c.hidden_size, c.selector_rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab_size, c.selector_rank) * 0.1)
        self.successor_codebook = nn.Parameter(torch.randn(c.vocab_size, c.selector_rank) * 0.1)

    def edges(self, hidden, predecessors):
        """Transition terms to every token, [..., vocab], from `predecessors` [...]; hidden [..., H]."""
        left = self.predecessor_codebook[predecessors] * self.hidden_projection(hidden)
        return left @ self.successor_codebook.T.to(left.dtype)


class DFlash(nn.Module):
    def __init__(self, c: DFlashConfig):
        super().__init__()
        self.c = c
        self.fc = nn.Linear(len(c.target_layer_ids) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm = RmsNorm0(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(c, kind) for kind in c.layer_types)
        self.norm = RmsNorm0(c.hidden_size, c.rms_norm_eps)
        if c.version == 2:
            self.candidate_selector = Selector(c)
        init_linears(self)

    def forward(self, features, anchor_ids, anchors, embed):
        """Final-normed hidden states [B, A, block, H]; row i > 0 predicts the token at position anchors + i.

        features [B, T, n_taps * H]: row t belongs to position t; anchor_ids and anchors [B, A]: each block's first
        token and its position; embed: the trunk's embedding module."""
        context = self.hidden_norm(self.fc(features))
        ids = torch.full((*anchors.shape, self.c.block_size), self.c.mask_token_id, device=anchors.device)
        ids[..., 0] = anchor_ids
        positions = anchors[..., None] + torch.arange(self.c.block_size, device=anchors.device)
        block_rope = rope_tables(positions, self.c.head_dim, self.c.rope_theta)
        rows = torch.arange(features.shape[1], device=anchors.device)
        context_rope = rope_tables(rows, self.c.head_dim, self.c.rope_theta)
        x = embed(ids).to(context.dtype)
        for layer in self.layers:
            x = layer(x, positions, block_rope, context, context_rope)
        return self.norm(x)

    def candidate_scores(self, logits, hidden, predecessors):
        """DFlash2: logits where a token is among the row's best `selector_top_k`, plus the edges; -inf elsewhere."""
        kept = logits.topk(self.c.selector_top_k, -1).indices
        scores = logits + self.candidate_selector.edges(hidden, predecessors)
        return torch.full_like(scores, -torch.inf).scatter(-1, kept, scores.gather(-1, kept))


def init_linears(module):
    for name, p in module.named_parameters():
        if p.dim() == 2 and "codebook" not in name:
            small = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(p, std=0.01 if small or "kernel_projection" in name else 1 / math.sqrt(p.shape[1]))
