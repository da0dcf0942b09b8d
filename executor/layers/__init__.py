"""The layers of a model, each written once as the launches it makes."""
