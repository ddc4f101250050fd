"""The trunk: a Qwen3.5 text model in plain PyTorch, written for training speed.

Parameter names and shapes are those of transformers' Qwen3_5ForCausalLM, so a state dict moves between the two
unchanged; `check.py` compares them. Unlike that class, rows may hold several packed documents, dropout is
available, and taps (residual streams after a block) are returned for the drafters.

Shapes: ids [B, T]; hidden states [B, T, hidden]; per head [B, heads, T, head_dim].
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64
# Added to the log-decay at a document's first token: exp(-60) empties the recurrent state.
RESET_LOG_DECAY = -60.0


@dataclasses.dataclass
class TrunkConfig:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 12
    full_attention_interval: int = 4
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    head_dim: int = 256
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    rope_theta: float = 1e7
    rotary_dim: int = 64
    rms_norm_eps: float = 1e-6
    dropout: float = 0.0

    def layer_types(self):
        return ["full_attention" if (i + 1) % self.full_attention_interval == 0 else "linear_attention"
                for i in range(self.num_hidden_layers)]


def rms1(x, weight, eps=1e-6):
    """Zero-centred RMS norm: multiplies by (1 + weight), in fp32, one cast at the end."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight.float())).to(x.dtype)


class RmsNorm1(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return rms1(x, self.weight, self.eps)


def swiglu(gate, up):
    return F.silu(gate) * up


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


def rope_tables(positions, dim, theta):
    """cos and sin [..., dim/2] in fp32 for integer positions [...]."""
    freq = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angle = positions[..., None].float() * freq
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Half-split rotation of the first 2 * cos.shape[-1] dims; the rest passes through."""
    n = cos.shape[-1]
    a, b, rest = x[..., :n], x[..., n:2 * n], x[..., 2 * n:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


class Attention(nn.Module):
    """Gated full attention; q_proj holds 256 query rows then 256 gate rows of each head."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, 2 * c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = RmsNorm1(c.head_dim, c.rms_norm_eps)
        self.k_norm = RmsNorm1(c.head_dim, c.rms_norm_eps)

    def project(self, x, cos, sin):
        """q [B, Hq, T, D], gate [B, T, Hq * D], k and v [B, Hkv, T, D]; cos and sin are [B, T, rotary/2]."""
        b, t, _ = x.shape
        q, gate = self.q_proj(x).view(b, t, self.c.num_attention_heads, 2 * self.c.head_dim).chunk(2, -1)
        k = self.k_proj(x).view(b, t, self.c.num_key_value_heads, self.c.head_dim)
        v = self.v_proj(x).view(b, t, self.c.num_key_value_heads, self.c.head_dim)
        cos, sin = cos[:, :, None], sin[:, :, None]
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        return q.transpose(1, 2), gate.reshape(b, t, -1), k.transpose(1, 2), v.transpose(1, 2)

    def finish(self, attended, gate):
        """attended [B, Hq, T, D]."""
        return self.o_proj(attended.transpose(1, 2).flatten(2) * torch.sigmoid(gate))

    def forward(self, x, cos, sin, mask):
        q, gate, k, v = self.project(x, cos, sin)
        groups = self.c.num_attention_heads // self.c.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v.to(q.dtype), attn_mask=mask, is_causal=mask is None)
        return self.finish(out, gate)

    def step(self, x, cos, sin, cache, position):
        """One token per row: x [B, 1, H]; cache = (k, v) of [B, Hkv, T_max, D], written at `position`."""
        q, gate, k, v = self.project(x, cos, sin)
        cache[0][:, :, position], cache[1][:, :, position] = k[:, :, 0], v[:, :, 0]
        keys, values = cache[0][:, :, :position + 1], cache[1][:, :, :position + 1]
        grouped = q.view(q.shape[0], self.c.num_key_value_heads, -1, self.c.head_dim)
        weights = torch.softmax((grouped @ keys.transpose(-1, -2)).float() * self.c.head_dim ** -0.5, -1)
        return self.finish((weights.to(values.dtype) @ values).view(q.shape), gate)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower A [..., 64, 64]: 16x16 blocks by repeated squaring, then block recursion."""

    @staticmethod
    def forward(ctx, a):
        shape = a.shape
        a = a.reshape(-1, shape[-1], shape[-1])
        n, size, s = a.shape[0], shape[-1], 16
        diag = torch.stack([a[:, i:i + s, i:i + s] for i in range(0, size, s)], 1)
        eye = torch.eye(s, device=a.device, dtype=a.dtype)
        power, inverse = -diag, eye - diag
        for _ in range(3):
            power = power @ power
            inverse = inverse + inverse @ power
        while s < size:
            x0, x1 = inverse[:, 0::2], inverse[:, 1::2]
            lower = torch.stack([a[:, i + s:i + 2 * s, i:i + s] for i in range(0, size, 2 * s)], 1)
            corner = -(x1 @ lower @ x0)
            top = torch.cat([x0, torch.zeros_like(x0)], -1)
            inverse = torch.cat([top, torch.cat([corner, x1], -1)], -2)
            s *= 2
        inverse = inverse.reshape(n, size, size)
        ctx.save_for_backward(inverse)
        return inverse.view(shape)

    @staticmethod
    def backward(ctx, grad):
        (m,) = ctx.saved_tensors
        mt = m.transpose(-1, -2)
        out = -(mt @ grad.reshape(m.shape) @ mt)
        return out.tril(-1).view(grad.shape)


def chunk_delta_rule(q, k, v, g, beta):
    """The gated delta rule in its chunked form. q, k, v [B, H, T, D], g, beta [B, H, T]; T a multiple of 64, fp32."""
    b, h, t, d = q.shape
    n = t // CHUNK
    q, k, v = (x.reshape(b, h, n, CHUNK, d) for x in (q, k, v))
    c, beta = g.reshape(b, h, n, CHUNK).cumsum(-1), beta.reshape(b, h, n, CHUNK, 1)
    keep = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (c[..., :, None] - c[..., None, :]).masked_fill(~keep, -1e4).exp()
    k_beta = k * beta
    m = UnitLowerInverse.apply((k_beta @ k.transpose(-1, -2) * decay).tril(-1))
    u = m @ (v * beta)
    w = m @ (k_beta * c.exp()[..., None])
    inside = q @ k.transpose(-1, -2) * decay
    q_decayed = q * c.exp()[..., None]
    k_left = (k * (c[..., -1:] - c).exp()[..., None]).transpose(-1, -2)
    last = c[..., -1].exp()[..., None, None]
    state = q.new_zeros(b, h, d, d)
    rows = []
    for i in range(n):
        delta = u[:, :, i] - w[:, :, i] @ state
        rows.append(q_decayed[:, :, i] @ state + inside[:, :, i] @ delta)
        state = state * last[:, :, i] + k_left[:, :, i] @ delta
    return torch.stack(rows, 2).reshape(b, h, t, d)


def l2norm(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def split_heads(mixed, key_heads, value_heads, d):
    """q (scaled), k, v [B, value_heads, T, d] in fp32 from the convolved projection [B, T, conv_dim]."""
    q, k, v = mixed.float().split([key_heads * d, key_heads * d, value_heads * d], -1)
    q, k = (l2norm(x.unflatten(-1, (key_heads, d))).repeat_interleave(value_heads // key_heads, 2) for x in (q, k))
    return (q * d ** -0.5).transpose(1, 2), k.transpose(1, 2), v.unflatten(-1, (value_heads, d)).transpose(1, 2)


def gated_norm(o, z, weight, eps):
    """Plain-weight RMS norm of each head, then times silu(z); o and z [B, T, heads, d]."""
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + eps)
    return weight * o * F.silu(z.float())


def gdn_core(u, z, b, a, first, conv_weight, a_log, dt_bias, norm_weight, key_heads, value_heads, d, eps):
    """Everything between the projections. first [B, T, taps-1] is 1 where the tap j+1 tokens back is of the same document."""
    w = conv_weight[:, 0].float()
    u = u.float()
    conv = u * w[:, -1]
    for j in range(1, w.shape[-1]):
        conv = conv + F.pad(u, (0, 0, j, 0))[:, :u.shape[1]] * first[..., j - 1:j] * w[:, -1 - j]
    q, k, v = split_heads(F.silu(conv), key_heads, value_heads, d)
    g = -a_log.float().exp() * F.softplus(a.float() + dt_bias) + RESET_LOG_DECAY * (1.0 - first[..., :1])
    o = chunk_delta_rule(q, k, v, g.transpose(1, 2), torch.sigmoid(b.float()).transpose(1, 2))
    return gated_norm(o.transpose(1, 2), z.unflatten(-1, (value_heads, d)), norm_weight, eps).flatten(2)


class GatedDeltaNet(nn.Module):
    core = staticmethod(gdn_core)  # replaced by its compiled form in training

    def __init__(self, c):
        super().__init__()
        self.c = c
        d, hk, hv = c.linear_head_dim, c.linear_num_key_heads, c.linear_num_value_heads
        conv_dim = (2 * hk + hv) * d
        self.in_proj_qkv = nn.Linear(c.hidden_size, conv_dim, bias=False)
        self.in_proj_z = nn.Linear(c.hidden_size, hv * d, bias=False)
        self.in_proj_b = nn.Linear(c.hidden_size, hv, bias=False)
        self.in_proj_a = nn.Linear(c.hidden_size, hv, bias=False)
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, c.linear_conv_kernel_dim, groups=conv_dim, bias=False)
        self.A_log = nn.Parameter(torch.empty(hv).uniform_(1, 16).log())
        step = torch.exp(torch.rand(hv) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(d))
        self.out_proj = nn.Linear(hv * d, c.hidden_size, bias=False)

    def forward(self, x, first):
        c = self.c
        u, z, b, a = self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)
        with torch.autocast(x.device.type, enabled=False):
            y = self.core(u, z, b, a, first, self.conv1d.weight, self.A_log, self.dt_bias, self.norm.weight,
                          c.linear_num_key_heads, c.linear_num_value_heads, c.linear_head_dim, c.rms_norm_eps)
        return self.out_proj(y.to(x.dtype))

    def step(self, x, cache):
        """One token per row; cache = [conv columns [B, 3, conv_dim], state [B, Hv, D, D]], updated in place."""
        c = self.c
        u = self.in_proj_qkv(x)
        window = torch.cat([cache[0], u], 1)
        cache[0] = window[:, 1:]
        mixed = F.silu((window * self.conv1d.weight[:, 0].T).sum(1, keepdim=True))
        q, k, v = split_heads(mixed, c.linear_num_key_heads, c.linear_num_value_heads, c.linear_head_dim)
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float()[:, 0] + self.dt_bias)
        beta = torch.sigmoid(self.in_proj_b(x).float())[:, 0, :, None, None]
        decay, state = g.exp()[..., None, None], cache[1]
        # One read of the old state serves the prediction and the read-out: S_new^T q = decay S^T q + (q . k) delta.
        read = torch.cat([k, q], -2) @ state * decay
        delta = (v - read[..., :1, :]) * beta
        state.mul_(decay).addcmul_(k.transpose(-1, -2), delta)
        o = read[..., 1:, :] + (q * k).sum(-1, keepdim=True) * delta
        z = self.in_proj_z(x).unflatten(-1, (c.linear_num_value_heads, c.linear_head_dim))
        y = gated_norm(o.transpose(1, 2), z, self.norm.weight, c.rms_norm_eps)
        return self.out_proj(y.flatten(2).to(x.dtype))


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.kind, self.dropout = kind, c.dropout
        if kind == "full_attention":
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.mlp = Mlp(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RmsNorm1(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm1(c.hidden_size, c.rms_norm_eps)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x, cos, sin, mask, first):
        n = self.input_layernorm(x)
        mixed = self.self_attn(n, cos, sin, mask) if self.kind == "full_attention" else self.linear_attn(n, first)
        x = x + self.drop(mixed)
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))

    def step(self, x, cos, sin, cache, position):
        n = self.input_layernorm(x)
        full = self.kind == "full_attention"
        x = x + (self.self_attn.step(n, cos, sin, cache, position) if full else self.linear_attn.step(n, cache))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(Layer(c, kind) for kind in c.layer_types())
        self.model.norm = RmsNorm1(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2 and "conv1d" not in name:
                residual = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.03 / math.sqrt(2 * c.num_hidden_layers) if residual else 0.03)

    def forward(self, ids, documents=None, taps=()):
        """(final-normed hidden [B, T, H], [residual after block l for l in taps]).

        documents [B, T]: ids of packed documents, non-decreasing along a row; None: one document per row.
        T must be a multiple of 64."""
        b, t = ids.shape
        if documents is None:
            documents, mask = torch.zeros_like(ids), None
        else:
            same = documents[:, :, None] == documents[:, None, :]
            mask = (same & torch.ones(t, t, dtype=torch.bool, device=ids.device).tril())[:, None]
        padded = F.pad(documents, (self.c.linear_conv_kernel_dim - 1, 0), value=-1)
        first = torch.stack([(padded[:, 3 - j:3 - j + t] == documents) for j in range(1, 4)], -1).float()
        cos, sin = rope_tables(torch.arange(t, device=ids.device).expand(b, t), self.c.rotary_dim, self.c.rope_theta)
        x = F.dropout(self.model.embed_tokens(ids), self.c.dropout, self.training)
        tapped = {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, mask, first)
            if i in taps:
                tapped[i] = x
        return self.model.norm(x), [tapped[i] for i in taps]

    def new_cache(self, rows, tokens, device):
        """Caches for `step`: keys and values up to `tokens` positions, convolution columns and recurrent states."""
        c, caches = self.c, []
        conv_dim = (2 * c.linear_num_key_heads + c.linear_num_value_heads) * c.linear_head_dim
        for layer in self.model.layers:
            if layer.kind == "full_attention":
                shape = (rows, c.num_key_value_heads, tokens, c.head_dim)
                caches.append([torch.zeros(shape, device=device), torch.zeros(shape, device=device)])
            else:
                caches.append([torch.zeros(rows, c.linear_conv_kernel_dim - 1, conv_dim, device=device),
                               torch.zeros(rows, c.linear_num_value_heads, c.linear_head_dim, c.linear_head_dim,
                                           device=device)])
        return caches

    def step(self, ids, position, caches):
        """Logits [B, vocab] after one more token per row: ids [B], all rows at the same position."""
        cos, sin = rope_tables(torch.full((1, 1), position, device=ids.device), self.c.rotary_dim, self.c.rope_theta)
        x = self.model.embed_tokens(ids)[:, None]
        for layer, cache in zip(self.model.layers, caches):
            x = layer.step(x, cos, sin, cache, position)
        return self.lm_head(self.model.norm(x))[:, 0]
