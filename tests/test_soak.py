"""A short run of the mixed hostile load; `soak.py` goes on for as long as it is told."""

from pathlib import Path

from soak import soak


def test_under_mixed_attacks_no_answer_is_lost_or_doubled_and_memory_and_descriptors_are_released(tmp_path: Path):
    result = soak(tmp_path, 12)
    assert result.answered > 100
