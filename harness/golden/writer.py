"""Makes a golden folder from a base, adapters and prompts."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from harness.errors import UsageFault
from harness.golden.arithmetic import Arithmetic
from harness.golden.arithmetic import scheme_of
from harness.golden.gap import Block
from harness.golden.gap import gap_of
from harness.golden.identity import adapter_digest
from harness.golden.identity import config_digest
from harness.golden.identity import lm_head_digest
from harness.golden.identity import lm_head_of
from harness.golden.identity import weights_digest
from harness.golden.index import NAME
from harness.golden.index import STATES
from harness.golden.index import AdapterEntry
from harness.golden.index import GoldenIndex
from harness.golden.index import StateFile
from harness.golden.prompts import PromptSet
from harness.golden.reference import Hidden
from harness.golden.reference import PeftReference
from harness.golden.store import logits_of


__all__ = ["write_golden"]

# Two copies of one lm_head: rounded to bfloat16 in one of them, it differs by 2^-9.
SAME_HEAD = 2.0**-8


def write_golden(
    base: Path,
    adapters: Sequence[Path],
    prompts: PromptSet,
    domain_prompts: Mapping[str, PromptSet],
    out: Path,
    *,
    scheme: str = "bf16",
    device_base: Path | None = None,
    source: str = "",
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Score base and adapters with the reference and write a golden folder.

    :param base: checkpoint folder.
    :param adapters: PEFT folders with different names.
    :param prompts: the main prompts.
    :param domain_prompts: samples of an adapter's own domain, by the name of the
        adapter's folder; an adapter without is left without a task effect.
    :param out: the folder to make; one that exists is replaced at the end.
    :param scheme: the arithmetic of the device.
    :param device_base: the base as the device has it, quantised and multiplied out,
        where `base` is not; the numeric floor then holds the quantisation too, and
        what can be seen is the larger.
    :param source: `weights_digest` of the base that `base` was made from by
        quantising it and multiplying it out, empty where it was not.
    :raises UsageFault: a base or adapter that does not load completely, two
        adapters of one name or content, `out` is something else than a golden, no
        such scheme, `device_base` is no copy of `base`.
    """
    device = scheme_of(scheme)
    _check(adapters, out)
    if device_base is not None:
        _check_copy(device_base, base)
    digests = {a.resolve().name: adapter_digest(a) for a in adapters}
    if len(set(digests.values())) < len(digests):
        raise UsageFault("two adapters have the same content", where=str(out))
    for prompt_set in (prompts, *domain_prompts.values()):
        _check_ids(prompt_set, len(lm_head_of(base)))
    domains = {
        name: _domain_name(domain_prompts[name])
        for name in digests
        if name in domain_prompts
    }
    samples = {domain: domain_prompts[name] for name, domain in domains.items()}
    if len(samples) < len(domains):
        raise UsageFault("two adapters have samples of one domain", where=str(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the goal, so that the rename stays on one file system.
    temp = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        temp.chmod(0o755)
        (temp / STATES).mkdir()
        reference = PeftReference(base, scheme, device_base)
        head = lm_head_of(base).astype(np.float32)
        progress("base")
        main, *rest = reference.score_all([prompts, *samples.values()])
        states = [_save(temp, "base", "", "", main, device)]
        for domain, hidden in zip(samples, rest, strict=True):
            states.append(_save(temp, f"base-{domain}", "", domain, hidden, device))
        entries = []
        for adapter in adapters:
            name = adapter.resolve().name
            own = domains.get(name)
            progress(name)
            sets = [prompts] if own is None else [prompts, samples[own]]
            scored = reference.score_all(sets, adapter)
            file, digest = _file_name(name, digests[name]), digests[name]
            states.append(_save(temp, file, digest, "", scored[0], device))
            if own is not None:
                file = f"{file}-{own}"
                states.append(_save(temp, file, digest, own, scored[1], device))
            gap = gap_of(_blocks(main, scored[0], head, device, prompts))
            entries.append(AdapterEntry(digest, name, own, gap))
        GoldenIndex(
            base={
                "weights": weights_digest(base),
                "config": config_digest(base),
                "lm_head": lm_head_digest(base),
            },
            scheme=scheme,
            versions=reference.versions,
            prompts=prompts,
            domains=samples,
            adapters={e.digest: e for e in entries},
            states={(s.adapter, s.domain): s for s in states},
            device_base="" if device_base is None else weights_digest(device_base),
            source=source,
        ).write(temp)
        _replace(temp, out)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _check(adapters: Sequence[Path], out: Path) -> None:
    names = [a.resolve().name for a in adapters]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UsageFault(f"two adapters are called {twice[0]!r}", where=str(out))
    if out.exists() and any(out.iterdir()) and not (out / NAME).is_file():
        raise UsageFault(
            "exists and is not a golden", where=str(out), cure="give another folder"
        )


def _check_copy(copy: Path, base: Path) -> None:
    """The same base but for its linears; logits are made with the head of `base`."""
    head, other = (lm_head_of(p).astype(np.float32) for p in (base, copy))
    if (
        config_digest(copy) != config_digest(base)
        or other.shape != head.shape
        or np.linalg.norm(other - head) > SAME_HEAD * np.linalg.norm(head)
    ):
        raise UsageFault(
            f"its architecture or lm_head is not that of {base}",
            where=str(copy),
            cure="give the same base as the device has it",
        )


def _check_ids(prompts: PromptSet, vocab: int) -> None:
    for p in prompts:
        ids = p.tokens + p.continuation
        if min(ids) < 0 or max(ids) >= vocab:
            raise UsageFault(
                f"prompt {p.name!r} has token ids outside the vocabulary of {vocab}",
                cure="use prompts made with this base's tokenizer",
            )


def _domain_name(samples: PromptSet) -> str:
    names = sorted({p.domain for p in samples})
    if len(names) != 1 or not names[0]:
        raise UsageFault(f"domain samples are of {len(names)} domains: {names}")
    return names[0]


def _file_name(name: str, digest: str) -> str:
    """A file name from an adapter's, which may hold anything."""
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    return f"{plain.lstrip('.')[:40]}-{digest[:8]}"


def _save(
    folder: Path,
    name: str,
    adapter: str,
    domain: str,
    hidden: Hidden,
    device: Arithmetic,
) -> StateFile:
    path = folder / STATES / f"{name}.safetensors"
    save_file(
        {
            "hidden": np.ascontiguousarray(hidden.exact, np.float32),
            "hidden_device": hidden.device.astype(device.states),
        },
        path,
    )
    path.chmod(0o644)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return StateFile(adapter, domain, path.name, digest)


def _blocks(
    base: Hidden,
    adapter: Hidden,
    head: np.ndarray,
    device: Arithmetic,
    prompts: PromptSet,
) -> Iterator[Block]:
    for start, end in pairwise(prompts.starts.tolist()):
        rows = slice(start, end)
        yield Block(
            logits_of(base.exact[rows], head),
            logits_of(base.device[rows], head, device.logits),
            logits_of(adapter.exact[rows], head),
            logits_of(adapter.device[rows], head, device.logits),
        )


def _replace(temp: Path, out: Path) -> None:
    """Put the finished folder in place; an old one is gone only afterwards."""
    old = temp.with_name(temp.name + "-old")
    if out.exists():
        os.replace(out, old)
    os.replace(temp, out)
    shutil.rmtree(old, ignore_errors=True)
