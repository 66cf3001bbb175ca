#!/usr/bin/env python3
"""Times kiln's modules, ONNX Runtime and tract on the same cases, interleaved, and prints a Markdown table.

    python -m venv venv && venv/bin/pip install numpy onnx onnxruntime
    cargo build --release -p kiln-compiler --bin kilnc
    cargo build --release --manifest-path tests/peers/Cargo.toml      # or: venv/bin/pip install tract
    venv/bin/python tests/peers/compare.py FOLDER… [--rounds 5] [--iters 10] [--threads 1] [--inbench EXE [--cpu]]

FOLDER holds model.onnx and test_data_set_0 (ONNX's own layout). Each round runs every peer once, one after the other, so
that what else the machine does meets all of them. A time is the median over all runs of all rounds; a ratio is the median
over the rounds of the ratio of the round's medians. Ratios are what counts: the machine's own speed cancels. Needs numpy,
onnx and onnxruntime; a peer that fails is shown as such.
"""
import argparse, importlib.util, json, math, os, re, resource, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def target_dir(manifest_dir):
    return os.environ.get("CARGO_TARGET_DIR", os.path.join(manifest_dir, "target"))


def kiln(folder, iters, threads, names):
    exe = os.path.join(target_dir(ROOT), "release", "kilnc")
    args = [exe, "bench", os.path.join(folder, "model.onnx"), "--iters", str(iters), "--threads", str(threads), "--json", "-q"]
    for k, name in enumerate(names):
        args += ["--input", f"{name}=" + os.path.join(folder, "test_data_set_0", f"input_{k}.pb")]
    out = subprocess.run(args, capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip()[-200:])
    result = json.loads(out.stdout)
    return result.get("times_ns") or [result["median_ns"]]


def inbench(exe, folder, iters, cpu):
    """The same program run inside the compiler (cargo build --release -p kiln-compiler --example inbench): no module is built."""
    def once(n):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = subprocess.run([exe, folder, str(n), "0"], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = re.search(r"median (\d+) us", out.stdout)
        if out.returncode or not found:
            raise RuntimeError(out.stderr.strip()[-200:])
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return int(found[1]) * 1000, spent * 1e9
    if not cpu:
        return [once(iters)[0]]
    # What loading and compiling cost is in both, and goes away.
    return [max(once(2 + 4 * iters)[1] - once(2)[1], 1.0) / (4 * iters)]


class InProcess:
    """A peer that is a Python package: `call()` runs the model once."""

    def __init__(self, call, cpu):
        self.call, self.clock = call, time.thread_time_ns if cpu else time.perf_counter_ns
        for _ in range(2):
            call()

    def __call__(self, iters):
        times = []
        for _ in range(iters):
            start = self.clock()
            self.call()
            times.append(self.clock() - start)
        return times


def onnx_runtime(folder, threads, cpu):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
    values = dict(zip([i.name for i in session.get_inputs()], inputs(folder)))
    return InProcess(lambda: session.run(None, values), cpu)


def inputs(folder):
    import onnx
    from onnx import numpy_helper
    files = (os.path.join(folder, "test_data_set_0", f"input_{k}.pb") for k in range(1000))
    tensors = []
    for name in files:
        if not os.path.exists(name):
            return tensors
        with open(name, "rb") as f:
            tensors.append(numpy_helper.to_array(onnx.TensorProto.FromString(f.read())))


def input_names(folder):
    import onnx
    graph = onnx.load(os.path.join(folder, "model.onnx"), load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    return [i.name for i in graph.input if i.name not in weights]


def tract_package(folder, cpu):
    import tract
    values = inputs(folder)
    model = tract.onnx().load(os.path.join(folder, "model.onnx"))
    types = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "bool": "bool"}
    for k, v in enumerate(values):
        model.set_input_fact(k, ",".join([*map(str, v.shape), types[str(v.dtype)]]))
    runnable = model.into_model().into_runnable()
    tensors = [tract.Tensor.from_numpy(v) for v in values]
    return InProcess(lambda: runnable.run(tensors), cpu)


def tract_binary(folder, iters):
    exe = os.path.join(target_dir(HERE), "release", "kiln-peers")
    out = subprocess.run([exe, folder, str(iters)], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip()[-200:])
    return [int(x) for x in out.stdout.split()]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folders", nargs="+")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--iters", type=int, default=10)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--inbench", metavar="EXE", help="time kiln by this example of kiln-compiler instead of built modules")
    p.add_argument("--cpu", action="store_true", help="CPU time, for a machine that does other work (one thread; needs --inbench)")
    a = p.parse_args()
    has_tract = importlib.util.find_spec("tract") is not None
    if a.cpu and (a.threads != 1 or not a.inbench or not has_tract):
        sys.exit("--cpu takes one thread, --inbench and the package tract")
    print("| model | kiln, ms | ONNX Runtime, ms | tract, ms | kiln / ONNX Runtime | kiln / tract |\n|--|--|--|--|--|--|")
    ratios = {"ort": [], "tract": []}
    for folder in a.folders:
        folder = folder.rstrip("/")
        times = {"kiln": [], "ort": [], "tract": []}
        errors = {}
        running = {}

        def peer(name):
            if name == "kiln":
                if a.inbench:
                    return lambda iters: inbench(a.inbench, folder, iters, a.cpu)
                names = input_names(folder)
                return lambda iters: kiln(folder, iters, a.threads, names)
            if name == "ort":
                return onnx_runtime(folder, a.threads, a.cpu)
            return tract_package(folder, a.cpu) if has_tract else lambda iters: tract_binary(folder, iters)

        for _ in range(a.rounds):
            for name in times:
                if name in errors:
                    continue
                try:
                    running[name] = running.get(name) or peer(name)
                    times[name].append(running[name](a.iters))
                except Exception as e:
                    errors[name] = str(e)
                    print(f"{os.path.basename(folder)}: {name}: {e}", file=sys.stderr)
        ms = {k: statistics.median(sum(v, [])) / 1e6 if v else None for k, v in times.items()}
        text = lambda x: f"{x:.2f}" if x is not None else "–"
        rounds = lambda peer: [statistics.median(k) / statistics.median(p) for k, p in zip(times["kiln"], times[peer])]
        ratio = lambda peer: statistics.median(rounds(peer)) if rounds(peer) else None
        for peer in ratios:
            if ratio(peer):
                ratios[peer].append(ratio(peer))
        row = [os.path.basename(folder), text(ms["kiln"]), text(ms["ort"]), text(ms["tract"]), text(ratio("ort")), text(ratio("tract"))]
        print("| " + " | ".join(row) + " |", flush=True)
    mean = lambda v: math.exp(sum(map(math.log, v)) / len(v)) if v else float("nan")
    print(f"| geometric mean | | | | {mean(ratios['ort']):.2f} | {mean(ratios['tract']):.2f} |")


if __name__ == "__main__":
    main()
