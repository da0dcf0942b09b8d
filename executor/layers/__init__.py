"""The operations and layers of a model, each written once as the launches that it makes."""
