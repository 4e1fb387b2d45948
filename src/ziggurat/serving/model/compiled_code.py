"""The dense part of an export, compiled for this machine by TorchInductor ahead of time, where that is faster.

The code is made from the graph alone: weights are given to it, so that all versions of a model share it. It stays in
the user's cache folder, never in the export, as a machine must not run code that came with a model. Beside it lies the
verdict: its seconds and those of the graph, and how far their outputs are apart. Casts between precisions are kept as
the graph has them, so outputs differ in the last bits of sums alone.

Compiling takes 10 to 40 seconds of one core, so a server answers by the graph meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import platform
import statistics
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ziggurat.core.digests import load_tensors
from ziggurat.core.errors import DataError
from ziggurat.core.files import user_cache, write_json
from ziggurat.core.temporary import temporary_folder
from ziggurat.core.untrusted import Damage, parse_json, read_bytes
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, TENSORS_FILE, load_program, read_program
from ziggurat.serving.artefact.example_inputs import example_inputs
from ziggurat.serving.artefact.manifest import Manifest

VERDICT_VERSION = 1
SIZES = (1, 100)
"""Rows for which both are timed; :data:`_COMPARED` those for which they are compared."""
_COMPARED = (1, 2, 100, 257)
_REPEATS = 50
_WORTH = 0.95
"""The greatest mean share of the graph's seconds with which code is used."""
_LARGEST = 4e-6
"""Largest difference of an output, of 1 or of the output if that is greater: 1e-6 of a probability."""
_OPTIONS: Mapping[str, Any] = {
    "aot_inductor.package_constants_in_so": False,
    "emulate_precision_casts": True,
    "always_keep_tensor_constants": True,  # weights of one number would become part of the code
    "joint_graph_constant_folding": False,  # and those whose numbers are equal
}
_STALE = Damage(DataError, "it is compiled again")

Runner = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether compiled code is used, and why.

    Attributes:
        is_used: whether it is.
        reason: a sentence.
        compile_seconds: what compiling took; 0 if it failed.
        graph_us, code_us: microseconds of a batch by the graph and by the code, for each of :data:`SIZES`.
        difference: the largest difference of their outputs.
        sha256: of the library; empty if there is none.
    """

    is_used: bool
    reason: str
    compile_seconds: float = 0.0
    graph_us: tuple[float, ...] = ()
    code_us: tuple[float, ...] = ()
    difference: float = 0.0
    sha256: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether it was measured. What failed is tried again when a server starts: there may be a compiler now."""
        return self.compile_seconds > 0


class CompiledCode:
    """The code of one export on this machine, which may be there already, or come while it is served.

    Args:
        export: the folder of the export.
        manifest: its manifest.
        threads: threads of the model.
    """

    def __init__(self, export: Path, manifest: Manifest, threads: int) -> None:
        recorded = manifest.files[PROGRAM_FILE].sha256
        content = recorded, torch.__version__, _processor(), threads, sorted(_OPTIONS.items()), VERDICT_VERSION
        key = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
        cache = user_cache("compiled")
        self.export, self.threads = export, threads
        self.library, self.verdict_file = cache / f"{key}.so", cache / f"{key}.json"
        self._verdict: Verdict | None = None
        self._looked = float("-inf")

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None while there is none. The file is looked for once a second at most."""
        if self._verdict is None and time.monotonic() - self._looked >= 1:
            self._looked = time.monotonic()
            self._verdict = self._read()
        return self._verdict

    def runner(self, module: nn.Module) -> Runner | None:
        """Returns the code with the weights of a module; None if there is none, or it is not used.

        Args:
            module: the graph. Its tensors are not copied: they must stay as they are.
        """
        verdict = self.verdict
        if verdict is None or not verdict.is_used:
            return None
        try:
            return _runner(self.library, module)
        except (RuntimeError, OSError, KeyError) as error:
            line = next(iter(str(error).strip().splitlines()), "")[:300]
            self._verdict = Verdict(False, f"it cannot be loaded: {type(error).__name__}: {line}")
            return None

    def compile(self) -> Verdict:
        """Compiles, times and compares, and stores the verdict. It takes 10 to 40 seconds of one core.

        A failure is a verdict, too: of a machine without a C++ compiler, of a full disk, of a graph that the compiler
        does not take.
        """
        found = self._read()
        if found is not None and found.is_settled:
            return found
        torch.set_num_threads(self.threads)
        self.library.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(".compiling-", self.library.parent) as folder:
            try:
                found = self._compile(folder.path)
            except Exception as error:  # noqa: BLE001 - compilers fail in many ways, and the graph serves as well
                line = next(iter(str(error).strip().splitlines()), "")[:300]
                found = Verdict(False, f"it cannot be compiled: {type(error).__name__}: {line}")
        write_json(self.verdict_file, {"version": VERDICT_VERSION, **asdict(found)})
        return found

    def _compile(self, folder: Path) -> Verdict:
        started = time.perf_counter()
        files = self._files()
        program = read_program(*files, DAMAGED)
        program.example_inputs = (example_inputs(program, 3), {})
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "work")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = torch._inductor.aoti_compile_and_package(  # pyright: ignore[reportPrivateUsage] - its public name
                program, package_path=str(folder / "code.pt2"), inductor_configs=dict(_OPTIONS)
            )
        seconds = time.perf_counter() - started
        with zipfile.ZipFile(package) as parts:
            name = next(name for name in parts.namelist() if name.endswith(".so"))
            (folder / "code.so").write_bytes(parts.read(name))
        graph = load_program(*files, DAMAGED)
        code = _runner(folder / "code.so", graph)
        with torch.no_grad():
            other = _with_other_weights(graph)
            pairs = ((graph, code), (other, _runner(folder / "code.so", other)))
            inputs = [example_inputs(program, size, size) for size in _COMPARED]
            difference = max(_difference(*pair, each) for pair in pairs for each in inputs)
            inputs = [example_inputs(program, size) for size in SIZES]
            times = [_times((graph, code), each) for each in inputs]
        graph_us, code_us = (tuple(each[place] * 1e6 for each in times) for place in (0, 1))
        share = statistics.geometric_mean([code / graph for graph, code in times])
        words = f"it takes {share:.0%} of the graph's time"
        is_used = share <= _WORTH and difference <= _LARGEST
        if difference > _LARGEST:
            words = f"its outputs differ from the graph's by {difference:.1e}"
        digest = ""
        if is_used:
            digest = hashlib.sha256((folder / "code.so").read_bytes()).hexdigest()
            (folder / "code.so").replace(self.library)
        return Verdict(is_used, words, seconds, graph_us, code_us, difference, digest)

    def _files(self) -> tuple[bytes, dict[str, Tensor], str]:
        manifest = Manifest.read(self.export)
        data = manifest.files[PROGRAM_FILE].checksum.read(self.export / PROGRAM_FILE, DAMAGED)
        arrays = load_tensors(self.export / TENSORS_FILE, manifest.files[TENSORS_FILE].checksum, DAMAGED)
        return data, {name: torch.from_numpy(each).clone() for name, each in arrays.items()}, str(self.export)

    def _read(self) -> Verdict | None:
        """Returns the stored verdict; None if there is none, or what it is of is damaged."""
        if not self.verdict_file.exists():
            return None
        try:
            values = parse_json(read_bytes(self.verdict_file, DAMAGED), str(self.verdict_file), _STALE)
            found = Verdict(
                is_used=bool(values["is_used"]),
                reason=str(values["reason"]),
                compile_seconds=float(values["compile_seconds"]),
                graph_us=tuple(map(float, values["graph_us"])),
                code_us=tuple(map(float, values["code_us"])),
                difference=float(values["difference"]),
                sha256=str(values["sha256"]),
            )
            if found.is_used and hashlib.sha256(self.library.read_bytes()).hexdigest() != found.sha256:
                return None
        except (DataError, OSError, KeyError, TypeError, ValueError):
            return None
        return found


def words(code: CompiledCode | None) -> str:
    """Returns how the dense part is computed, for people."""
    if code is None:
        return "by the graph"
    verdict = code.verdict
    if verdict is None:
        return "by the graph, until it is compiled"
    if not verdict.is_used:
        return f"by the graph; compiled code is not used: {verdict.reason}"
    return f"by code compiled here: {verdict.reason}"


def _processor() -> str:
    """Returns what code is compiled for: the processor's instructions, where the system lists them."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        return f"{torch.backends.cpu.get_cpu_capability()} {flags.partition(':')[2].strip()}"
    return f"{torch.backends.cpu.get_cpu_capability()} {platform.machine()}"


def _runner(library: Path, module: nn.Module) -> Runner:
    """Returns a function that calls compiled code with the tensors of a module."""
    from torch._C import _aoti  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    loaded: Any = _aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = loaded.get_constant_names_to_original_fqns()
    given = {name: tensors[original].detach() for name, original in names.items()}
    loaded.update_constant_buffer(given, False, True, user_managed=True)
    in_spec, out_spec = map(pytree.treespec_loads, loaded.get_call_spec())
    names_of_rows, names_of_masks = (each.context for each in in_spec.child(0).children()[1:])

    def run(dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        inputs = (dense_BF, *(rows[name] for name in names_of_rows), *(masks[name] for name in names_of_masks))
        flat = [each.contiguous() for each in inputs]  # the code takes the strides for granted
        assert given  # the library has pointers to them
        return pytree.tree_unflatten(loaded.run(flat), out_spec)

    return run


def _with_other_weights(module: nn.Module) -> nn.Module:
    """Returns a copy with other weights, which shows whether compiled code takes all of them from what it is given."""
    found = copy.deepcopy(module)
    draw = torch.Generator().manual_seed(1)
    for tensor in (*found.parameters(), *found.buffers()):
        if tensor.is_floating_point():
            tensor.mul_(1 + 0.1 * torch.rand(tensor.shape, generator=draw).to(tensor.dtype))
    return found


def _difference(graph: nn.Module, code: Runner, inputs: tuple[Any, ...]) -> float:
    expected, found = graph(*inputs), code(*inputs)
    return float(((found - expected).abs() / expected.abs().clamp(min=1)).max())


def _times(both: tuple[Callable[..., Tensor], Callable[..., Tensor]], inputs: tuple[Any, ...]) -> tuple[float, float]:
    """Returns the median seconds of each, called in turn."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPEATS):
        for call, spent in zip(both, seconds, strict=True):
            started = time.perf_counter()
            call(*inputs)
            spent.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
