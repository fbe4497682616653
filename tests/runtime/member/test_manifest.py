"""What a refit carries, and how it lies in the buckets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reknit.runtime.member.manifest import (
    ALIGNMENT,
    Bucket,
    BucketPlan,
    Manifest,
    TensorSpec,
    pack,
    slot_bytes,
    slot_view,
)

# Every dtype that a dense tensor can have on this torch, the sub-byte ones included.
DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bits"))
    },
    key=str,
)


def spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, shape, dtype)


def noise(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor of any dtype with every kind of bit pattern in it, not numbers only."""
    count = torch.Size(shape).numel()
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    if dtype is torch.bool:
        raw &= 1
    return raw.view(dtype).reshape(shape)


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def staging_of(bucket: Bucket) -> Tensor:
    return torch.full((bucket.nbytes,), 0xA5, dtype=torch.uint8)


# --- the list -----------------------------------------------------------------------------------------------


def test_a_manifest_survives_json() -> None:
    manifest = Manifest((spec("w", 2, 3), spec("scalar", dtype="int64"), spec("none", 0, 4, dtype="bfloat16")))
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_json(manifest.to_json()).digest == manifest.digest
    assert manifest.nbytes == 24 + 8 + 0
    assert len(manifest) == 3


@pytest.mark.parametrize("text", ["[1]", '[["w"]]', '[["w",[1],"float99"]]', '[["w",[-1],"float32"]]', "x", "3"])
def test_what_is_not_a_manifest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Manifest.from_json(text)


def test_the_digest_tells_names_shapes_dtypes_and_order_apart() -> None:
    lists = [
        (spec("a", 2), spec("b", 2)),
        (spec("b", 2), spec("a", 2)),
        (spec("a", 2), spec("c", 2)),
        (spec("a", 1, 2), spec("b", 2)),
        (spec("a", 2, dtype="float16"), spec("b", 2)),
        (spec("a", 2),),
        (),
    ]
    assert len({Manifest(specs).digest for specs in lists}) == len(lists)


def test_a_name_that_occurs_twice_is_refused_and_named() -> None:
    with pytest.raises(ValueError, match=r"more than once: layer\.0"):
        Manifest((spec("layer.0", 1), spec("layer.1", 1), spec("layer.0", 2)))


def test_tied_weights_are_two_tensors_of_the_manifest() -> None:
    shared = torch.arange(6.0)
    manifest = Manifest.from_tensors([("embedding", shared), ("head", shared.view(2, 3))])
    assert [s.name for s in manifest.specs] == ["embedding", "head"]
    assert manifest.nbytes == 48


def test_a_manifest_keeps_no_tensor() -> None:
    """A trainer may produce its tensors one by one; none may pile up."""
    alive: list[int] = [0, 0]

    class Counted(torch.Tensor):
        def __init__(self, *_: object) -> None:
            alive[0] += 1
            alive[1] = max(alive)

        def __del__(self) -> None:
            alive[0] -= 1

    Manifest.from_tensors((f"w{i}", torch.zeros(1).as_subclass(Counted)) for i in range(20))
    assert alive[1] <= 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    ],
    ids=["sparse", "quantized", "nested"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch deprecates quantized tensors
def test_a_tensor_that_is_not_plain_is_refused_by_name(make: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match=r"'odd' is not a plain dense tensor"):
        Manifest.from_tensors([("odd", make())])


def test_what_is_not_a_tensor_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'odd' is not a tensor but a list"):
        Manifest.from_tensors([("odd", [1.0])])  # type: ignore[list-item]


def test_expectations_may_lie_on_the_meta_device() -> None:
    real, meta = torch.zeros(3, 4), torch.zeros(3, 4, device="meta")
    assert Manifest.from_tensors([("w", real)]) == Manifest.from_tensors([("w", meta)])


# --- differences --------------------------------------------------------------------------------------------


def test_equal_lists_in_another_order_do_not_differ() -> None:
    """M14, for tensors: they are handed on by name."""
    a, b = spec("a", 1), spec("b", 2)
    assert Manifest((a, b)).differences(Manifest((b, a))) == ()


def test_every_kind_of_difference_is_listed_with_both_sides() -> None:
    """R13: the receiver that refuses says exactly why."""
    expected = Manifest((spec("gone", 1), spec("turned", 2, 3), spec("cast", 4), spec("same", 1)))
    offered = Manifest((spec("turned", 3, 2), spec("cast", 4, dtype="bfloat16"), spec("new", 1), spec("same", 1)))
    assert expected.differences(offered) == (
        "1 missing of 4: gone",
        "1 unexpected of 4: new",
        "1 other shape (expected -> offered) of 4: turned [2, 3] -> [3, 2]",
        "1 other dtype (expected -> offered) of 4: cast float32 -> bfloat16",
    )


def test_differences_of_long_lists_stay_short_and_counted() -> None:
    expected = Manifest(tuple(spec(f"model.layers.{i}.weight", 8) for i in range(5000)))
    lines = expected.differences(Manifest((spec("other", 8),)))
    assert len(lines) == 2
    assert lines[0].startswith("5000 missing of 5000: model.layers.0.weight, ")
    assert lines[0].endswith("and 4995 more")
    assert sum(map(len, lines)) < 300


# --- buckets ------------------------------------------------------------------------------------------------


def test_small_tensors_share_a_bucket_and_a_large_one_has_its_own() -> None:
    sizes = {"a": 40, "b": 40, "huge": 1000, "c": 10, "d": 10}
    plan = BucketPlan(Manifest(tuple(spec(n, size, dtype="uint8") for n, size in sizes.items())), bucket_bytes=150)
    names = [[slot.spec.name for slot in bucket.slots] for bucket in plan.buckets]
    assert names == [["a", "b"], ["huge"], ["c", "d"]]
    assert [bucket.nbytes for bucket in plan.buckets] == [64 + 40, 1000, 64 + 10]


@given(
    sizes=st.lists(st.integers(0, 300), max_size=30),
    bucket_bytes=st.integers(1, 700),
)
def test_every_tensor_lies_in_one_bucket_aligned_and_alone_in_its_bytes(sizes: list[int], bucket_bytes: int) -> None:
    manifest = Manifest(tuple(spec(f"t{i}", size, dtype="uint8") for i, size in enumerate(sizes)))
    buckets = BucketPlan(manifest, bucket_bytes).buckets
    assert tuple(slot.spec for bucket in buckets for slot in bucket.slots) == manifest.specs
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.offset % ALIGNMENT == 0
            assert slot.offset >= end
            end = slot.offset + slot.spec.nbytes
        assert end == bucket.nbytes
        assert bucket.nbytes <= bucket_bytes or len(bucket.slots) == 1


def test_nothing_to_carry_needs_no_bucket() -> None:
    assert BucketPlan(Manifest(())).buckets == ()


def test_a_plan_survives_its_publication() -> None:
    plan = BucketPlan(Manifest(tuple(spec(f"model.layers.{i}.weight", 8, 8) for i in range(3000))), 1 << 20)
    data = plan.to_bytes()
    again = BucketPlan.from_bytes(data)
    assert again == plan
    assert again.digest == plan.digest
    assert len(data) < 40_000


def test_plans_that_differ_in_the_bucket_size_only_have_different_digests() -> None:
    manifest = Manifest((spec("w", 8),))
    assert BucketPlan(manifest, 1024).digest != BucketPlan(manifest, 2048).digest


@pytest.mark.parametrize("data", [b"", b"junk", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_what_is_not_a_plan_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        BucketPlan.from_bytes(data)


def test_a_bucket_size_below_one_is_refused_with_its_value() -> None:
    with pytest.raises(ValueError, match=r"bucket_bytes must be positive, got 0"):
        BucketPlan(Manifest(()), bucket_bytes=0)


# --- bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_bits_of_every_dtype_arrive_unchanged(dtype: torch.dtype) -> None:
    tensors = {
        "odd": noise(dtype, 7),
        "scalar": noise(dtype),
        "none": noise(dtype, 0, 3),
        "cube": noise(dtype, 3, 5, 2),
    }
    bucket = BucketPlan(Manifest.from_tensors(tensors.items())).buckets[0]
    staging = staging_of(bucket)
    for slot in bucket.slots:
        pack(staging, slot, tensors[slot.spec.name])
    for slot in bucket.slots:
        view = slot_view(staging, slot)
        assert view.dtype == dtype
        assert view.shape == tensors[slot.spec.name].shape
        assert raw(view) == raw(tensors[slot.spec.name])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(20)[::3],
        torch.arange(3.0).expand(4, 3),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(3, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "conjugated", "with gradient"],
)
def test_a_tensor_that_is_not_contiguous_is_carried_by_value(tensor: Tensor) -> None:
    bucket = BucketPlan(Manifest.from_tensors([("w", tensor)])).buckets[0]
    staging = staging_of(bucket)
    pack(staging, bucket.slots[0], tensor)
    view = slot_view(staging, bucket.slots[0])
    assert torch.equal(view, tensor.detach())
    assert view.is_contiguous()


def test_packing_writes_its_own_bytes_only() -> None:
    tensors = {"a": noise(torch.uint8, 3), "b": noise(torch.float32, 2)}
    bucket = BucketPlan(Manifest.from_tensors(tensors.items())).buckets[0]
    staging = staging_of(bucket)
    pack(staging, bucket.slots[1], tensors["b"])
    assert slot_bytes(staging, bucket.slots[0]).tolist() == [0xA5] * 3
    assert staging[3:64].tolist() == [0xA5] * 61
