"""scaled_dot_product_attention() like PyTorch's: broadcasting, empty heads, dropout of everything, errors, nested
tensors."""

import oracle
import pytest
from torch_data import DEVICES, array, make, torch

import headrace.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
F = torch.nn.functional


def gradients(function, tensors, **arguments):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = function(*leaves, **arguments)
    return out, torch.autograd.grad((out * make(tuple(out.shape), seed=7)).sum(), leaves)


def check_as_pytorch(tensors, **arguments):
    ours, theirs = (gradients(f, tensors, **arguments) for f in (ht.scaled_dot_product_attention, plain))
    for x, y in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        assert x.shape == y.shape
        assert x.numel() == 0 or (x - y).abs().max() <= 2e-5 * max(y.detach().abs().max().item(), 1e-3)


def plain(*tensors, **arguments):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **arguments)


# ---- leading axes ----

# Leading axes of query, key and value, before [seqlen, head_dim].
LEADING = [
    ((2, 3), (1, 3), (1, 3)), ((1, 3), (2, 3), (2, 3)), ((2, 1), (2, 3), (2, 3)), ((2, 3), (2, 1), (2, 3)),
    ((2, 3), (2, 3), (2, 1)), ((2, 3), (1, 1), (2, 3)), ((2, 3), (2, 3), (1, 3)), ((2, 1), (1, 3), (1, 1)),
    ((2, 3), (3,), (3,)), ((3,), (2, 3), (1, 3)), ((2, 3), (), ()), ((), (2, 3), (3,)), ((3,), (1,), (3,)),
    ((), (), ()), ((5, 2, 3), (2, 3), (1, 2, 3)), ((5, 1, 3), (1, 2, 1), (5, 2, 3)), ((4, 1, 2, 3), (2, 3), (1,)),
]  # fmt: skip


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("options", ["none", "causal", "mask", "bias"])
@pytest.mark.parametrize("head_dims", [(16, 16), (16, 24), (0, 8), (8, 0), (0, 0)], ids=str)
def test_axes_before_the_sequence_broadcast(leading, options, head_dims):
    dim, dim_v = head_dims
    shapes = [(*axes, n, d) for axes, n, d in zip(leading, (7, 9, 9), (dim, dim, dim_v), strict=True)]
    tensors = [make(shape, seed=i) for i, shape in enumerate(shapes)]
    whole = torch.broadcast_shapes(*leading)
    arguments = {
        "none": {},
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.ones(7, 9, dtype=torch.bool).tril(3)},
        "bias": {"attn_mask": make((*whole, 7, 9), seed=5)},
    }[options]
    if dim_v == 0:  # PyTorch does not broadcast empty results
        assert ht.scaled_dot_product_attention(*tensors, **arguments).shape == (*whole, 7, 0)
        return
    check_as_pytorch(tensors, **arguments)


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_groups_of_heads_broadcast_in_the_batch(enable_gqa):
    q, k, v = make((2, 6, 7, 16), seed=1), make((1, 3, 9, 16), seed=2), make((2, 3, 9, 16), seed=3)
    if enable_gqa:
        wanted = plain(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
        assert (ht.scaled_dot_product_attention(q, k, v, enable_gqa=True) - wanted).abs().max() < 1e-5
        return
    with pytest.raises(ValueError, match="6, 3 and 3 heads: must be equal or 1; pass enable_gqa=True"):
        ht.scaled_dot_product_attention(q, k, v)


def test_axes_that_do_not_broadcast_are_named():
    q, k = make((2, 3, 7, 16)), make((4, 3, 9, 16))
    with pytest.raises(ValueError, match=r"query, key and value of shapes \(2, 3, 7, 16\), .* must be equal or 1"):
        ht.scaled_dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match="have 1, 4 and 4 axes: must have at least two each"):
        ht.scaled_dot_product_attention(q[0, 0, 0], k, k)


# ---- arguments ----


@pytest.mark.parametrize("arguments", [{}, {"is_causal": True}, {"attn_mask": torch.ones(7, 9).bool().tril()}], ids=str)
def test_dropout_of_everything_gives_zeros(arguments):
    tensors = [make((2, 3, n, 16), seed=n) for n in (7, 9, 9)]
    check_as_pytorch(tensors, dropout_p=1.0, **arguments)
    out, grads = gradients(ht.scaled_dot_product_attention, tensors, dropout_p=1.0, **arguments)
    assert not any(x.any() for x in (out, *grads))


@pytest.mark.parametrize("kind", ["mask", "bias", "causal bias"])
def test_a_mask_beside_is_causal_raises_what_pytorch_raises(kind):
    q = make((1, 2, 5, 8))
    mask = {
        "mask": torch.ones(5, 5, dtype=torch.bool),
        "bias": torch.zeros(5, 5),
        "causal bias": torch.nn.attention.bias.causal_upper_left(5, 5),
    }[kind]
    try:
        F.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
    except (RuntimeError, ValueError) as error:
        theirs = type(error)
    else:
        pytest.skip("this PyTorch takes both")
    with pytest.raises(theirs) as caught:
        ht.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
    assert caught.type is theirs


# ---- nested tensors ----


def nested(lengths, heads, dim, device, seed, like=None):
    """[batch, heads, seqlen (ragged), dim], a leaf with a gradient, and its sequences."""
    values = make((sum(lengths), heads, dim), device=device, seed=seed)
    offsets = torch.tensor([0, *lengths], device=device).cumsum(0) if like is None else like.offsets()
    leaf = torch.nested.nested_tensor_from_jagged(values, offsets).detach().requires_grad_()
    return leaf, [x[None].transpose(1, 2).detach().requires_grad_() for x in values.split(lengths)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("lengths_k", [(3, 7, 1), (5, 2, 11)], ids=["self", "cross"])
def test_nested_tensors_equal_their_sequences(device, is_causal, kv_heads, lengths_k):
    lengths_q = (3, 7, 1)
    leaves, parts = zip(
        nested(lengths_q, 4, 16, device, 1), nested(lengths_k, kv_heads, 16, device, 2),
        nested(lengths_k, kv_heads, 24, device, 3), strict=True,
    )  # fmt: skip
    arguments = {"is_causal": is_causal, "scale": 0.3, "enable_gqa": kv_heads == 2}
    out = ht.scaled_dot_product_attention(*(t.transpose(1, 2) for t in leaves), **arguments)
    assert out.is_nested and out.layout == torch.jagged and out.dim() == 4
    assert torch.equal(out.offsets(), leaves[0].offsets())
    assert out.shape[2] == leaves[0].shape[1], "as ragged as the query is"
    wanted = [ht.scaled_dot_product_attention(*x, **arguments) for x in zip(*parts, strict=True)]
    for got, one in zip(out.unbind(), wanted, strict=True):
        oracle.check_out(array(got), array(one[0]), "float32")
    out.values().square().sum().backward()
    sum(x.square().sum() for x in wanted).backward()
    for leaf, sequences in zip(leaves, parts, strict=True):
        assert leaf.grad.is_nested
        for got, one in zip(leaf.grad.unbind(), sequences, strict=True):
            assert (got - one.grad[0].transpose(0, 1)).abs().max() <= 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_nested_tensors_with_room_between_sequences(device):
    room = make((3, 9, 2, 16), device=device)
    starts, lengths = torch.tensor([1, 0, 4], device=device), torch.tensor([5, 9, 2], device=device)
    x = torch.nested.narrow(room, 1, starts, lengths, layout=torch.jagged)
    try:
        heads_first = x.transpose(1, 2)
    except ValueError:
        pytest.skip("this PyTorch has no such tensors")
    out = ht.scaled_dot_product_attention(heads_first, heads_first, heads_first)
    for got, row, start, n in zip(out.unbind(), room, starts.tolist(), lengths.tolist(), strict=True):
        one = row[None, start : start + n].transpose(1, 2)
        oracle.check_out(array(got), array(ht.scaled_dot_product_attention(one, one, one)[0]), "float32")


def test_dropout_of_nested_tensors_follows_manual_seed():
    x, _ = nested((3, 7, 40), 2, 16, "cpu", 1)

    def call(seed, p=0.5):
        torch.manual_seed(seed)
        return ht.scaled_dot_product_attention(*[x.transpose(1, 2)] * 3, dropout_p=p).values()

    assert torch.equal(call(1), call(1)) and not torch.equal(call(1), call(2))
    assert not torch.equal(call(1), call(1, 0.0))


def test_what_nested_tensors_cannot_have():
    x, _ = nested((3, 5), 2, 16, "cpu", 1)
    y, _ = nested((4, 5), 2, 16, "cpu", 2)
    q, other = x.transpose(1, 2), y.transpose(1, 2)
    old = torch.nested.nested_tensor([torch.ones(2, 3, 16), torch.ones(2, 5, 16)])
    dense = make((2, 2, 5, 16))
    attend = ht.scaled_dot_product_attention
    with pytest.raises(ValueError, match="attn_mask with nested tensors: must be None"):
        attend(q, q, q, torch.zeros(5, 5))
    with pytest.raises(ValueError, match="key and value have sequences of different lengths: must be equal"):
        attend(q, q, other)
    mixed = (((dense, q, q), "query"), ((q, dense, q), "key"), ((q, q, dense), "value"), ((x, q, q), "query"))
    for given, name in mixed:
        with pytest.raises(ValueError, match=rf"^{name} \(.*must all be nested tensors of layout torch.jagged"):
            attend(*given)
    with pytest.raises(ValueError, match=r"^query \(torch.strided\): .*layout=torch.jagged"):
        attend(old, old, old)
    with pytest.raises(ValueError, match="3 and 3 heads and query 2: must be equal; pass enable_gqa"):
        z = nested((3, 5), 3, 16, "cpu", 1)[0].transpose(1, 2)
        attend(q, z, z)
