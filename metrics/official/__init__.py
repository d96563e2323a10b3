"""Official scores of public benchmarks, equal to the published programs to the last digit."""
