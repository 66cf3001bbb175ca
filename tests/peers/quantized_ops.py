"""Cuts a quantised model into its operators, each with the reference's own inputs and results.

In: a case folder (`model.onnx`, `test_data_set_0`). Out: below OUT one case folder for every value in 8-bit codes and every
graph output: the nodes between it and the codes before it, fed with what ONNX Runtime computed there in a run of the whole
model, and expecting what it computed. Compare with

    python quantized_ops.py CASE OUT
    cargo run --release -p kiln-compiler --example codes -- OUT

Needs: numpy, onnx, onnxruntime.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, utils

CODES = (np.uint8, np.int8)


def load(path):
    return numpy_helper.to_array(onnx.load_tensor(str(path)))


def made_values(graph):
    """Names of all values that nodes make, in order."""
    return [name for node in graph.node for name in node.output if name]


def run(model, feeds, names):
    """Values of a run of the whole model, with graph optimisations as a user gets them."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    known = {o.name for o in model.graph.output}
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names if n not in known)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    return dict(zip(outputs, session.run(None, feeds)))


def code_values(model, feeds):
    """Values in 8-bit codes that depend on the inputs, with their elements."""
    inferred = onnx.shape_inference.infer_shapes(model)
    wide = {v.name for v in inferred.graph.value_info if v.type.tensor_type.elem_type not in (2, 3)}
    constants = {i.name for i in model.graph.initializer}
    # What reads nothing but constants is constant.
    for node in model.graph.node:
        if all(not name or name in constants for name in node.input):
            constants.update(node.output)
    names = [n for n in made_values(model.graph) if n not in wide and n not in constants]
    values = run(model, feeds, names)
    return {n: v for n, v in values.items() if v.dtype.type in CODES or n in {o.name for o in model.graph.output}}


def inputs_of(graph, output, stops):
    """The values among `stops` that `output` is computed from directly."""
    producers = {name: node for node in graph.node for name in node.output}
    found, todo, seen = [], list(producers[output].input), set()
    while todo:
        name = todo.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in stops:
            found.append(name)
        elif name in producers:
            todo.extend(producers[name].input)
    return sorted(found)


def write(folder, model, values):
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"))
    for what, ports in (("input", model.graph.input), ("output", model.graph.output)):
        for i, port in enumerate(ports):
            onnx.save_tensor(numpy_helper.from_array(values[port.name], port.name), str(data / f"{what}_{i}.pb"))


def main(case, out):
    model = onnx.load(str(case / "model.onnx"))
    constants = {i.name for i in model.graph.initializer}
    ports = [i.name for i in model.graph.input if i.name not in constants]
    feeds = {name: load(case / "test_data_set_0" / f"input_{i}.pb") for i, name in enumerate(ports)}
    codes = code_values(model, feeds)
    values = {**feeds, **codes}
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    for name, value in codes.items():
        del_info = [v for v in typed.graph.value_info if v.name == name]
        for v in del_info:
            typed.graph.value_info.remove(v)
        if name not in {o.name for o in typed.graph.output}:
            dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
            typed.graph.value_info.append(helper.make_tensor_value_info(name, dtype, value.shape))
    extractor = utils.Extractor(typed)
    producers = {name: node for node in model.graph.node for name in node.output}
    for i, name in enumerate(codes):
        inputs = inputs_of(model.graph, name, values.keys())
        part = extractor.extract_model(inputs, [name])
        kinds = [n.op_type for n in part.graph.node if n.op_type not in ("DequantizeLinear", "QuantizeLinear")]
        kind = kinds[-1] if kinds else producers[name].op_type
        write(out / f"{i:03}_{kind}", part, values)
    print(f"{len(codes)} cases in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
