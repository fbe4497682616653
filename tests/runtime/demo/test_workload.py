"""The demo's work is real: it learns, it writes, and its proof tells one bit apart, across processes too."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reknit.runtime.demo.corpus import MAX_BYTES, MIN_BYTES, CorpusTooSmall, load_corpus, source_files
from reknit.runtime.demo.model import ByteModel, ModelShape
from reknit.runtime.demo.workload import Proof, ShardWorkload, TrainerWorkload, UnacceptableTensor, use_one_thread

TINY = ModelShape(width=32, layers=2, heads=2, context=32)

OTHER_PROCESS = """
import json, sys, torch
from reknit.runtime.demo.workload import ShardWorkload
shard = ShardWorkload(seed=int(sys.argv[2]))
before = shard.proof()
shard.accept(list(torch.load(sys.argv[1]).items()))
after = shard.proof()
text = shard.generate("def ", 20)
print(json.dumps([before.digest, after.digest, after.heldout_loss_hex, text]))
"""


@dataclasses.dataclass(frozen=True)
class Training:
    """The real model before and after a few real steps."""

    trainer: TrainerWorkload
    untrained: Proof
    losses: list[float]


@pytest.fixture(scope="module")
def training() -> Training:
    trainer = TrainerWorkload(seed=1)
    untrained = trainer.proof()
    return Training(trainer, untrained, [trainer.train_step(step) for step in range(1, 5)])


def tiny_pair() -> tuple[TrainerWorkload, ShardWorkload]:
    return TrainerWorkload(seed=1, windows=2, shape=TINY), ShardWorkload(seed=2, shape=TINY)


def test_the_corpus_is_the_same_at_every_reading_and_keeps_its_held_out_part_apart() -> None:
    corpus = load_corpus()
    load_corpus.cache_clear()
    again = load_corpus()
    assert torch.equal(corpus.train, again.train)
    assert torch.equal(corpus.held_out, again.held_out)
    assert MIN_BYTES <= len(corpus.train) + len(corpus.held_out) <= MAX_BYTES
    assert len(corpus.held_out) > 32 * 2**10
    assert bytes(corpus.held_out[:64].tolist()) not in bytes(corpus.train.tolist())


def test_a_batch_is_a_function_of_seed_and_step_and_the_held_out_batch_of_nothing() -> None:
    corpus = load_corpus()
    first = corpus.batch(seed=1, step=1, size=4, length=16)
    assert first.shape == (4, 17)
    assert torch.equal(first, corpus.batch(seed=1, step=1, size=4, length=16))
    for seed, step in ((1, 2), (2, 1), (1, 1 + 2**32), (1 + 2**32, 1)):
        assert not torch.equal(first, corpus.batch(seed=seed, step=step, size=4, length=16))
    held_out = corpus.held_out_batch(size=4, length=16)
    assert torch.equal(held_out, corpus.held_out_batch(size=4, length=16))
    assert held_out.shape == (4, 17)


def test_files_that_differ_between_machines_are_no_part_of_the_corpus(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "sitecustomize.py", "_sysconfigdata__linux.py", "notes.txt"):
        (tmp_path / name).write_text("x")
    for folder in ("json", "site-packages", "test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "inner.py").write_text("x")
    found = [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)]
    assert found == ["a.py", "b.py", "json/inner.py"]


def test_a_python_without_its_source_is_refused_with_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "only.py").write_bytes(b"pass\n")
    with pytest.raises(CorpusTooSmall, match=rf"{tmp_path} holds 5 bytes .* 1 \.py files .* {MIN_BYTES}"):
        load_corpus(tmp_path)


def test_the_model_has_the_promised_size_and_a_seed_that_decides_its_weights() -> None:
    torch.manual_seed(5)
    expected_draw = torch.rand(1)
    torch.manual_seed(5)
    real = ByteModel(seed=1, shape=ModelShape())
    assert torch.equal(torch.rand(1), expected_draw), "building a model must not disturb torch's own seed"
    assert 5_000_000 < sum(parameter.numel() for parameter in real.parameters()) < 10_000_000
    one, same, other = (ByteModel(seed=seed, shape=TINY) for seed in (1, 1, 2))
    for (name, weight), twin in zip(one.named_parameters(), same.parameters(), strict=True):
        assert torch.equal(weight, twin), name
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_reading_byte_by_byte_gives_the_same_logits_as_reading_at_once() -> None:
    model = ByteModel(seed=3, shape=TINY)
    ids = torch.tensor([list(b"def spam(eggs):")])
    with torch.no_grad():
        at_once, _ = model(ids)
        past, steps = None, []
        for position in range(ids.shape[1]):
            logits, past = model(ids[:, position : position + 1], past)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once)


def test_no_byte_sees_the_bytes_after_it() -> None:
    model = ByteModel(seed=3, shape=TINY)
    with torch.no_grad():
        one, _ = model(torch.tensor([list(b"abcdefgh")]))
        other, _ = model(torch.tensor([list(b"abcdXXXX")]))
    assert torch.equal(one[:, :4], other[:, :4])
    assert not torch.equal(one[:, 4:], other[:, 4:])


def test_training_reduces_the_loss_on_bytes_that_were_never_trained_on(training: Training) -> None:
    trained = training.trainer.proof()
    assert training.losses[-1] < training.losses[0] - 1.0
    assert trained.heldout_loss < training.untrained.heldout_loss - 1.0
    assert trained != training.untrained
    assert training.trainer.trained_steps() == len(training.losses)


def test_two_trainers_with_one_seed_hold_the_same_bits_after_the_same_steps() -> None:
    pair = [TrainerWorkload(seed=7, windows=2, shape=TINY) for _ in range(2)]
    losses = [[trainer.train_step(step) for step in range(3)] for trainer in pair]
    assert losses[0] == losses[1]
    assert pair[0].proof() == pair[1].proof()


def test_another_process_proves_the_same_bits_after_it_got_the_weights(training: Training, tmp_path: Path) -> None:
    trainer = training.trainer
    torch.save(dict(trainer.named_tensors()), tmp_path / "weights")
    answer = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "weights"), "99"],
        # Without a bound of our own torch would take as many threads as there are cores.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    before, after, loss_hex, text = json.loads(answer.stdout)
    proof = trainer.proof()
    assert before != proof.digest, "the shard must start with weights of its own"
    assert (after, loss_hex) == (proof.digest, proof.heldout_loss_hex)
    assert text == trainer.generate("def ", 20)


def test_a_single_bit_of_a_single_tensor_changes_the_proof() -> None:
    trainer, shard = tiny_pair()
    shard.accept(list(trainer.named_tensors()))
    truth = trainer.proof()
    assert shard.proof() == truth
    for name, tensor in shard.named_tensors():
        bits = tensor.view(-1).view(torch.uint8)
        bits[0] ^= 1
        assert shard.proof() != truth, name
        assert shard.proof().digest != truth.digest, name
        bits[0] ^= 1
    assert shard.proof() == truth


def test_minus_zero_is_not_zero_and_nan_is_itself() -> None:
    trainer, shard = tiny_pair()
    bias = dict(trainer.named_tensors())["final_norm.bias"]
    assert float(bias[0]) == 0.0
    truth = trainer.proof()
    bias[0] = -0.0
    assert trainer.proof().digest != truth.digest
    bias[0] = float("nan")
    shard.accept(list(trainer.named_tensors()))
    assert shard.proof() == trainer.proof()


def test_a_proof_is_compared_by_its_bits_alone_and_survives_the_way_between_processes() -> None:
    proof = TrainerWorkload(seed=1, windows=2, shape=TINY).proof()
    assert pickle.loads(pickle.dumps(proof)) == proof
    assert dataclasses.replace(proof, tensors=0, nbytes=0, heldout_loss=float("nan")) == proof
    assert dataclasses.replace(proof, digest="0" * 32) != proof
    assert dataclasses.replace(proof, heldout_loss_hex="00000000") != proof
    assert len(proof.digest) == 32
    assert torch.tensor(proof.heldout_loss).view(torch.int32).item() == int(proof.heldout_loss_hex, 16)


def test_a_proof_changes_nothing_and_is_the_same_whatever_ran_before() -> None:
    trainer, _ = tiny_pair()
    first: Proof = trainer.proof()
    torch.set_num_threads(2)
    trainer.generate("import ", 8)
    torch.set_num_threads(2)
    assert trainer.proof() == first
    assert torch.get_num_threads() == 1


def test_everything_is_carried_parameters_and_buffers_each_once() -> None:
    trainer, shard = tiny_pair()
    carried = dict(trainer.named_tensors())
    assert list(carried) == [name for name, _ in shard.expects()]
    assert set(carried) == set(trainer.model.state_dict())
    assert not any(tensor.requires_grad for tensor in carried.values())
    assert carried["trained_steps"].dtype == torch.int64
    assert carried["trained_steps"].shape == ()


def test_what_is_carried_is_the_live_memory() -> None:
    trainer, shard = tiny_pair()
    before = [(name, tensor.clone()) for name, tensor in trainer.named_tensors()]
    trainer.train_step(1)
    assert any(not torch.equal(old, new) for (_, old), (_, new) in zip(before, trainer.named_tensors(), strict=True))
    shard.accept(list(trainer.named_tensors()))
    assert shard.proof() == trainer.proof()
    assert shard.trained_steps() == 1


def test_a_tensor_that_does_not_fit_is_refused_and_nothing_is_copied() -> None:
    trainer, shard = tiny_pair()
    before = shard.proof()
    good = list(trainer.named_tensors())
    norm = dict(good)["final_norm.weight"]
    for bad, message in (
        (("no.such", norm), r"no tensor 'no\.such'"),
        (("final_norm.weight", norm[:1]), r"torch\.float32 \(1,\).*torch\.float32 \(32,\)"),
        (("final_norm.weight", norm.double()), r"torch\.float64"),
    ):
        with pytest.raises(UnacceptableTensor, match=message):
            shard.accept([*good, bad])
    assert shard.proof() == before


def test_generate_returns_text_of_its_weights_longer_than_the_context() -> None:
    trainer, shard = tiny_pair()
    length = 3 * TINY.context
    text = trainer.generate("def ", length, seed=4)
    assert 0 < len(text) <= length
    assert text == trainer.generate("def ", length, seed=4)
    assert text != shard.generate("def ", length, seed=4)
    shard.accept(list(trainer.named_tensors()))
    assert text == shard.generate("def ", length, seed=4)
    assert shard.generate("", 0) == ""
    assert shard.generate("", 1)
    with pytest.raises(ValueError, match="n_bytes must not be negative, got -1"):
        shard.generate("x", -1)


def test_a_shape_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width \(30\) must be a multiple of heads \(4\)"):
        ModelShape(width=30, heads=4)
    with pytest.raises(ValueError, match="context must be at least 2"):
        ModelShape(context=1)


def test_one_thread_is_asked_for_in_the_thread_that_computes() -> None:
    torch.set_num_threads(2)
    use_one_thread()
    assert torch.get_num_threads() == 1
