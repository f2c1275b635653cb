"""A short run of the chaos; `chaos.py` goes on for as long as it is told."""

from pathlib import Path

from chaos import PoolChaos, chaos


def test_programs_that_are_killed_and_stopped_at_random_lose_no_request_and_heal(tmp_path: Path):
    ends = chaos(tmp_path, 15, seed=1)
    assert ends["200"] > 100


def test_a_process_of_many_models_that_is_killed_between_loads_copies_and_batches_loses_no_request_and_heals(tmp_path: Path):
    ends = chaos(tmp_path, 10, seed=1, of=PoolChaos)
    assert ends["200"] > 100
