import pytest

from reflectune.core.config import find_problems
from reflectune.core.launching import alone, launched, rank
from reflectune.models.names import PlacementKeys


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (1, 2)),
    ],
)
def test_a_process_knows_its_number_and_the_launchs_size(environment, expected, monkeypatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (rank(), launched()) == expected


def test_only_a_single_process_spreads_a_model_over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_problems(PlacementKeys, {"device_map": "auto"}) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_problems(PlacementKeys, {}) == []
    assert "this launch has 2" in find_problems(PlacementKeys, {"device_map": "auto"})[0]


def test_a_command_outside_the_launch_gets_none_of_its_variables() -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"}
    launch = {"RANK": "0", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true", "TORCHELASTIC_RUN_ID": "none"}
    assert alone({**kept, **launch}) == kept
