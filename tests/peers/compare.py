#!/usr/bin/env python3
"""Times kiln's modules, ONNX Runtime, OpenVINO, tract and rten on the same cases, interleaved, and prints a Markdown table.

    python -m venv venv && venv/bin/pip install numpy onnx onnxruntime openvino tract
    cargo build --release -p kiln-compiler --bin kilnc
    cargo build --release --manifest-path tests/peers/Cargo.toml      # rten; tract too, where its Python package is missing
    venv/bin/python tests/peers/compare.py FOLDER… [--rounds 5] [--iters 10] [--threads 1] [--peers ort,openvino,tract,rten]
        [--inbench EXE [--cpu]] [--instreams EXE]

FOLDER holds model.onnx and test_data_set_0 (ONNX's own layout). Each round runs every peer once, one after the other, so
that what else the machine does meets all of them. A time is the median over all runs of all rounds; a ratio is the median
over the rounds of the ratio of the round's medians. Ratios are what counts: the machine's own speed cancels. A peer that cannot
run a model is shown as a dash, with its reason on standard error. OpenVINO computes in f32 (its precision hint, and without the dynamic
quantisation that it does by default where weights are int8: with it minilm_int8's result is 3 % off, rms over standard deviation); tract has one thread.
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


def instreams(exe, folder, iters, threads):
    """The same on several streams (example instreams); it times one stream in turn with them."""
    out = subprocess.run([exe, folder, str(threads), str(iters)], capture_output=True, text=True)
    found = re.search(r"several best [\d.]+ median ([\d.]+) us", out.stdout)
    if out.returncode or not found:
        raise RuntimeError(out.stderr.strip()[-200:])
    return [float(found[1]) * 1000]


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


def openvino(folder, threads, cpu):
    import openvino as ov
    core = ov.Core()
    model = core.read_model(os.path.join(folder, "model.onnx"))
    values = inputs(folder)
    model.reshape({port: list(value.shape) for port, value in zip(model.inputs, values)})
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for k, value in enumerate(values):
        request.set_input_tensor(k, ov.Tensor(value))
    return InProcess(request.infer, cpu)


def binary(peer, folder, iters, threads):
    exe = os.path.join(target_dir(HERE), "release", "kiln-peers")
    out = subprocess.run([exe, peer, folder, str(iters), str(threads)], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr.strip()[-200:])
    return [int(x) for x in out.stdout.split()]


def measure(name, folder, a, has_tract):
    """What times `name` on `folder`: a function from a number of runs to nanoseconds for each."""
    if name == "kiln":
        if a.instreams and a.threads > 1:
            return lambda iters: instreams(a.instreams, folder, iters, a.threads)
        if a.inbench:
            return lambda iters: inbench(a.inbench, folder, iters, a.cpu)
        names = input_names(folder)
        return lambda iters: kiln(folder, iters, a.threads, names)
    if name == "ort":
        return onnx_runtime(folder, a.threads, a.cpu)
    if name == "openvino":
        return openvino(folder, a.threads, a.cpu)
    if name == "tract" and has_tract:
        return tract_package(folder, a.cpu)
    return lambda iters: binary(name, folder, iters, a.threads)


TITLES = {"ort": "ONNX Runtime", "openvino": "OpenVINO", "tract": "tract", "rten": "rten"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folders", nargs="+")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--iters", type=int, default=10)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--peers", default="ort,tract", help="of ort, openvino, tract, rten")
    p.add_argument("--inbench", metavar="EXE", help="time kiln by this example of kiln-compiler instead of built modules")
    p.add_argument("--instreams", metavar="EXE", help="the same for more than one thread")
    p.add_argument("--cpu", action="store_true", help="CPU time, for a machine that does other work (one thread; needs --inbench)")
    a = p.parse_args()
    peers = a.peers.split(",")
    has_tract = importlib.util.find_spec("tract") is not None
    if a.cpu and (a.threads != 1 or not a.inbench or "rten" in peers or "tract" in peers and not has_tract):
        sys.exit("--cpu takes one thread, --inbench and peers that are Python packages")
    titles = [TITLES[peer] for peer in peers]
    heads = ["model", "kiln, ms"] + [t + ", ms" for t in titles] + ["kiln / " + t for t in titles]
    print("| " + " | ".join(heads) + " |\n" + "|--" * len(heads) + "|", flush=True)
    text = lambda x: f"{x:.2f}" if x is not None else "–"
    ratios = {peer: [] for peer in peers}
    for folder in a.folders:
        folder = folder.rstrip("/")
        times = {name: [] for name in ["kiln", *peers]}
        running, failed = {}, set()
        for _ in range(a.rounds):
            for name in times:
                if name in failed:
                    continue
                try:
                    running[name] = running.get(name) or measure(name, folder, a, has_tract)
                    times[name].append(running[name](a.iters))
                except Exception as e:
                    failed.add(name)
                    print(f"{os.path.basename(folder)}: {name}: {e}", file=sys.stderr)
        row = [os.path.basename(folder)] + [text(statistics.median(sum(v, [])) / 1e6 if v else None) for v in times.values()]
        for peer in peers:
            rounds = [statistics.median(k) / statistics.median(p) for k, p in zip(times["kiln"], times[peer])]
            row.append(text(statistics.median(rounds) if rounds else None))
            if rounds:
                ratios[peer].append(statistics.median(rounds))
        print("| " + " | ".join(row) + " |", flush=True)
    mean = lambda v: f"{math.exp(sum(map(math.log, v)) / len(v)):.2f}" if v else "–"
    print("| geometric mean |" + " |" * (1 + len(peers)) + "".join(f" {mean(v)} |" for v in ratios.values()))


if __name__ == "__main__":
    main()
