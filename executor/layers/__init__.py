"""The operations and layers of a model, each written once as the launches it makes, with the kernels that the profile names."""
