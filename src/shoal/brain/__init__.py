"""What decides a job's size from what was measured. `shoal.brain.algorithms` holds the algorithms, pure functions."""
