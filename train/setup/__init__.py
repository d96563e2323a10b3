"""What trains and where: parameters, adapters, and how a run is launched over processes."""
