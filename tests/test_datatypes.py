"""Every datatype, there and back, to the edges of its range."""

import json

import ml_dtypes
import numpy as np
import pytest
import triton_clients
from conftest import Served
from models import DATATYPES
from tritonclient.utils import triton_to_np_dtype

# Four values of each, the smallest and the largest among them.
INTEGERS = [name for name in DATATYPES if "INT" in name]
VALUES = {name: [np.iinfo(triton_to_np_dtype(name)).min, 0, 1, np.iinfo(triton_to_np_dtype(name)).max] for name in INTEGERS}
VALUES |= {
    "BOOL": [True, False, False, True],
    "FP16": [-65504.0, 5.9604645e-08, 0.333251953125, 65504.0],
    "BF16": [-3.3895314e38, 1.1754944e-38, 0.333984375, 3.3895314e38],
    "FP32": [-3.4028235e38, 1e-45, 0.1, 3.4028235e38],
    "FP64": [-1.7976931348623157e308, 5e-324, 0.1, 1.7976931348623157e308],
}
IN_JSON = [name for name in DATATYPES if name not in ("FP16", "BF16")]


def array(name: str, values: list | None = None) -> np.ndarray:
    dtype = ml_dtypes.bfloat16 if name == "BF16" else triton_to_np_dtype(name)
    return np.array([values or VALUES[name]], dtype=dtype)


def others(name: str) -> dict[str, np.ndarray]:
    """Inputs for all datatypes but one: the model takes all of them."""
    return {f"in_{other}": array(other, [0, 0, 0, 0]) for other in DATATYPES if other != name}


def bits(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("name", DATATYPES)
def test_binary_there_and_back(client, name: str):
    inputs = triton_clients.tensors({f"in_{name}": array(name), **others(name)})
    result = client.infer("identity", inputs, outputs=triton_clients.outputs([f"out_{name}"]))
    assert result.get_output(f"out_{name}")["datatype"] == name
    assert bits(result.as_numpy(f"out_{name}")) == bits(array(name))


@pytest.mark.parametrize("name", ["FP16", "BF16", "FP32", "FP64"])
def test_infinities_and_nan_travel_as_binary(client, name: str):
    values = array(name, [float("inf"), float("-inf"), float("nan"), -0.0])
    inputs = triton_clients.tensors({f"in_{name}": values, **others(name)})
    result = client.infer("identity", inputs, outputs=triton_clients.outputs([f"out_{name}"]))
    assert bits(result.as_numpy(f"out_{name}")) == bits(values)


@pytest.mark.parametrize("name", IN_JSON)
def test_json_there_and_back_without_a_lost_digit(client, name: str):
    inputs = triton_clients.tensors({f"in_{name}": array(name)}, binary=False) + triton_clients.tensors(others(name))
    result = client.infer("identity", inputs, outputs=triton_clients.outputs([f"out_{name}"], binary=False))
    assert bits(result.as_numpy(f"out_{name}")) == bits(array(name))


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
def test_json_data_may_be_nested_or_flat(served: Served, nested: bool):
    data = [[1, 2], [3, 4]] if nested else [1, 2, 3, 4]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": data}]}
    answer = served.infer("double", json.dumps(body).encode())
    assert answer.status == 200, answer
    (output,) = answer.json()["outputs"]
    assert np.array(output["data"]).reshape(-1).tolist() == [2, 4, 6, 8]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [2, 2])


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_half_precision_has_no_json_form(served: Served, name: str):
    given = [
        {"name": f"in_{other}", "datatype": other, "shape": [1, 4], "data": VALUES[other]} for other in IN_JSON
    ] + [{"name": f"in_{other}", "datatype": other, "shape": [1, 4], "data": [0, 0, 0, 0]} for other in ("FP16", "BF16")]
    answer = served.infer("identity", json.dumps({"inputs": given}).encode())
    assert answer.status == 400
    assert "FP16" in answer.error or "BF16" in answer.error


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("UINT8", [256, 0, 0, 0]),
        ("UINT8", [-1, 0, 0, 0]),
        ("INT8", [128, 0, 0, 0]),
        ("INT32", [2**31, 0, 0, 0]),
        ("INT64", [2**63, 0, 0, 0]),
        ("UINT64", [2**64, 0, 0, 0]),
        ("INT32", [0.5, 0, 0, 0]),
        ("INT32", ["1", 0, 0, 0]),
        ("INT32", [True, 0, 0, 0]),
        ("BOOL", [2, 0, 0, 0]),
        ("FP32", [None, 0, 0, 0]),
        ("FP32", ["x", 0, 0, 0]),
    ],
)
def test_json_values_out_of_range_or_kind_are_refused(served: Served, name: str, values: list):
    given = [{"name": f"in_{name}", "datatype": name, "shape": [1, 4], "data": values}]
    answer = served.infer("identity", json.dumps({"inputs": given}).encode())
    assert answer.status == 400
    assert f"in_{name}" in answer.error
