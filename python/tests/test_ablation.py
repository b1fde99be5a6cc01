"""bench/peers/host_ablation.py on the package of the tree."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))

import host_ablation  # noqa: E402

import headrace.torch as ht  # noqa: E402


def results(q, k, v, dout):
    out = ht.scaled_dot_product_attention(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), dout)


@pytest.mark.parametrize("name", host_ablation.ABLATIONS)
def test_an_ablation_changes_no_result(name):
    q, k, v, dout = (torch.randn(2, 3, 5, 8, requires_grad=i < 3) for i in range(4))
    expected = results(q, k, v, dout)
    with host_ablation.without(host_ablation.ABLATIONS[name]):
        for _ in range(3):  # the first call plans, the second is looked up by its key, the third has a guard
            for got, wanted in zip(results(q, k, v, dout), expected, strict=True):
                assert torch.equal(got, wanted)


def test_an_ablation_ends_with_its_block():
    before = host_ablation._eager.compute
    with host_ablation.without(host_ablation.ABLATIONS["out like q"]):
        assert host_ablation._eager.compute is not before
        assert host_ablation._quick.compute is host_ablation._eager.compute
    assert host_ablation._eager.compute is host_ablation._quick.compute is before


def test_an_ablation_of_other_text_is_refused():
    edit = host_ablation.Edit(host_ablation._eager, "compute", "no such text", "")
    with pytest.raises(LookupError, match="compute has no 'no such text'"):
        with host_ablation.without((edit,)):
            pass
