import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reflectune.data_builders.conversion.ids import SeenIds, hash_ids, is_among, sample_bound

NAMES = st.lists(st.text(alphabet="abc", max_size=3), max_size=30)


@given(st.lists(NAMES, max_size=8))
def test_a_name_is_new_once(batches: list[list[str]]) -> None:
    seen, known = SeenIds(), set[str]()
    for batch in batches:
        expected = []
        for position, name in enumerate(batch):
            if name in known:
                expected.append(position)
            known.add(name)
        assert seen.add(hash_ids(batch)).tolist() == expected
    assert len(seen) == len(known)


def test_the_runs_stay_few() -> None:
    seen = SeenIds()
    for n in range(300):
        seen.add(hash_ids([f"{n}-{i}" for i in range(10)]))
    assert len(seen.runs) <= 12


@given(NAMES, NAMES)
def test_a_name_is_among_others_if_its_hash_is(some: list[str], others: list[str]) -> None:
    is_member = is_among(hash_ids(some), np.sort(hash_ids(others)))
    assert is_member.tolist() == [name in others for name in some]


@given(st.sets(st.text(max_size=4), max_size=50), st.integers(0, 60), st.integers(0, 60), st.integers(0, 9))
def test_a_sample_is_exact_and_a_smaller_one_is_part_of_it(names, small, large, seed) -> None:
    small, large = min(small, large), max(small, large)
    ordered = sorted(names)
    hashes = hash_ids(ordered, seed)

    def drawn(count: int) -> set[str]:
        bound = sample_bound(hashes, count)
        return {name for name, value in zip(ordered, hashes.tolist(), strict=True) if value < bound}

    assert len(drawn(large)) == min(large, len(names))
    assert drawn(small) <= drawn(large)


def test_another_seed_draws_another_sample() -> None:
    names = [str(n) for n in range(1000)]
    first, second = (hash_ids(names, seed) for seed in (0, 1))
    assert not np.array_equal(np.argsort(first), np.argsort(second))
