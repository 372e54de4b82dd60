"""Calls on the arrays of each library: numpy's, torch's on the CPU and on a GPU, others'."""
