"""The scenarios that a script writes are those that it would write today."""

import importlib.util
from pathlib import Path

GENERATOR = Path(__file__).resolve().parents[1] / "scenarios" / "generate.py"


def test_the_generated_scenarios_are_not_stale():
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.stale() == [], "run python3 scenarios/generate.py"
