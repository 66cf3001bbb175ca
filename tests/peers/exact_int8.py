#!/usr/bin/env python3
"""Writes the expected outputs of quantised networks again, from exact sums.

    venv/bin/python tests/peers/exact_int8.py FOLDER…

FOLDER holds model.onnx and test_data_set_*. On x86-64 without VNNI, ONNX Runtime's products of u8 and i8 saturate as a rule: what it gives there
is off by many codes. With the setting `session.x64quantprecision` it computes them exactly on every processor.
"""
import glob, os, sys
import onnx, onnxruntime as ort
from onnx import numpy_helper


def index(path):
    return int(path.rsplit("_", 1)[1][: -len(".pb")])


for folder in sys.argv[1:]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
    for data in glob.glob(os.path.join(folder, "test_data_set_*")):
        files = sorted(glob.glob(os.path.join(data, "input_*.pb")), key=index)
        feed = {i.name: numpy_helper.to_array(onnx.load_tensor(f)) for i, f in zip(session.get_inputs(), files)}
        for k, (port, value) in enumerate(zip(session.get_outputs(), session.run(None, feed))):
            with open(os.path.join(data, f"output_{k}.pb"), "wb") as f:
                f.write(numpy_helper.from_array(value, port.name).SerializeToString())
