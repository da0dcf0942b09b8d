"""Kernels whose blocks stay on the GPU for several operations of a layer and wait for each other between them: which warp does
what (schedule.py), how weights flow through shared memory meanwhile (weight_stream.py), the activations that all of a block
read (staged_activations.py), the kernels (persistent_layer.py)."""
