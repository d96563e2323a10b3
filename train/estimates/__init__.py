"""What a run takes before it is made: memory by its parts, time, and what to change where it does not fit."""
